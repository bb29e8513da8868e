"""What a caller sees of a generation: options, stream, responses, text."""
