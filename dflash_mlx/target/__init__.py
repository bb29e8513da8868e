"""The target behind one small face: embed, head, and a forward that hands out its features."""
