"""From runs to medians, tables, files, a page and a comparison."""

import dataclasses
import itertools
import json
import re
from html.parser import HTMLParser

import pytest
from support.reports import MACHINE, drafting_run, made_report, made_run

from dflash_mlx.errors import UserError
from dflash_mlx.measure.compare import compare, differences
from dflash_mlx.measure.page import page
from dflash_mlx.measure.report import Report, report_files
from dflash_mlx.measure.summary import Spread, repeat_spread, summarize
from dflash_mlx.measure.svg import Series, bar_chart, ticks
from dflash_mlx.measure.tables import as_markdown, as_text, markdown_report, tables, text_report


class Page(HTMLParser):
    """Notes texts, tags and attributes, and that every tag is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_ratio_is_taken_prompt_by_prompt_between_medians():
    speeds = {"code-1": ((10, 12, 50), (30, 24, 1)), "prose-1": ((100, 100, 100), (50, 50, 50))}
    runs = [
        made_run(arm, prompt, decode_tps=speed, repeat=i)
        for prompt, sides in speeds.items()
        for arm, side in zip(("plain", "block 3"), sides, strict=True)
        for i, speed in enumerate(side)
    ]
    plain, block = summarize(runs, ["plain", "block 3"])
    assert plain.ratio == Spread(1, 1, 1) and block.ratio == Spread(1.25, 0.5, 2)
    assert block.spread("decode_tps") == Spread(37, 24, 50) and block.prompts == 2


def test_repeats_that_lie_apart():
    runs = [made_run(decode_tps=x, repeat=i) for i, x in enumerate((9, 10, 12))]
    assert repeat_spread(runs) == pytest.approx(0.3)
    assert repeat_spread(runs[:1]) is None


def test_prompts_that_only_one_arm_has_do_not_count_in_the_ratio():
    runs = [made_run("plain", "code-1"), drafting_run("block 3", "code-1", 20.0)]
    runs += [drafting_run("block 3", "code-2", 500.0), made_run("plain", "x", decode_tps=None)]
    plain, block = summarize(runs, ["plain", "block 3", "block 4"])
    assert block.ratio == Spread(2, 2, 2) and block.prompts == 2
    assert plain.spread("decode_tps") == Spread(10, 10, 10) and plain.prompts == 2


def test_texts_that_differ_are_counted_by_prompt():
    runs = [drafting_run("block 3", "a-1", 1.0, repeat=i, same_text=False) for i in range(3)]
    runs += [drafting_run("block 3", "a-2", 1.0), drafting_run("free", "a-1", 1.0, same_text=None)]
    block, free = summarize(runs, ["block 3", "free"])
    assert block.different == 1 and free.different is None
    (table, *_) = tables(made_report(runs=runs, arms=["block 3", "free"]))
    assert [row[-1] for row in table.rows] == ["no, 1 of 2 differ", "-"]


def test_acceptance_is_a_mean_over_runs_that_reached_the_position():
    runs = [made_run("a", acceptance=[1.0, 0.5]), made_run("a", acceptance=[0.5])]
    (summary,) = summarize(runs, ["a", "b"])
    assert summary.acceptance == [0.75, 0.5]


def test_tokens_per_round_over_time():
    rounds = [2] * 8 + [4] * 4 + [1]
    runs = [made_run("a", tokens_per_round=rounds), made_run("a", tokens_per_round=[9], repeat=1)]
    points = summarize(runs, ["a"])[0].tokens_per_round(most_buckets=2)
    assert [y for _, y in points] == [2, 4]
    assert points[0][0] < 16 < points[1][0]
    assert summarize(runs[1:], ["a"])[0].tokens_per_round() == []


def test_file_is_read_back_as_it_was(tmp_path):
    report = made_report(notes=["A note."])
    files = report_files(str(tmp_path / "new" / "name"))
    files[0].write_text(report.to_json())
    assert [f.name for f in files] == ["name.json", "name.md", "name.html"]
    assert Report.from_json(files[0]) == report


REPORT_KEYS = "format version date machine models settings arms planned notes runs texts"
RUN_KEYS = (
    "arm prompt kind context repeat prompt_tokens tokens finish_reason seconds "
    "first_token_seconds prompt_tps decode_tps reported_prompt_tps reported_decode_tps "
    "peak_gb working_gb tau acceptance block_rounds tokens_per_round kernels differs_at same_text"
)


def test_json_keeps_its_form():
    """Other programs read this; a change needs a new version of the format."""
    content = json.loads(made_report().to_json())
    assert (content["format"], content["version"]) == ("dflash-mlx benchmark", 2)
    assert set(content) == set(REPORT_KEYS.split())
    assert set(content["runs"][0]) == set(RUN_KEYS.split())


def test_places_for_the_files(tmp_path):
    assert report_files(str(tmp_path))[0] == tmp_path / "benchmark.json"
    assert report_files(f"{tmp_path}/new/")[0] == tmp_path / "new" / "benchmark.json"
    assert report_files(f"{tmp_path}/a.md") == report_files(f"{tmp_path}/a.json")
    (tmp_path / "file").write_text("")
    (tmp_path / "b.html").mkdir()
    for taken in ("file/a", "b"):
        with pytest.raises(UserError, match="cannot be"):
            report_files(str(tmp_path / taken))
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a JSON file"),
        ("[]", "not a report"),
        ('{"format": "other"}', "not a report"),
        ('{"format": "dflash-mlx benchmark", "version": 99}', "version 99"),
        ('{"format": "dflash-mlx benchmark", "version": 1}', "damaged"),
        ('{"format": "dflash-mlx benchmark", "version": 1, "runs": [{}]}', "damaged"),
    ],
)
def test_other_files_are_refused_in_a_sentence(text, words, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=words):
        Report.from_json(tmp_path / "a.json")
    with pytest.raises(UserError, match="cannot be read"):
        Report.from_json(tmp_path / "none.json")


def test_tables_in_both_forms_have_the_same_cells():
    report = made_report(planned=100, notes=["A note."])
    titles = [table.title for table in tables(report)]
    assert titles == [
        "All prompts",
        "÷ plain, by kind of text",
        "τ, by kind of text",
        "÷ plain, by length of the prompt",
        "Decode tok/s, by length of the prompt",
        "Accepted drafts, by position in the block",
    ]
    for table in tables(report):
        for row in table.rows:
            assert len(row) == len(table.headers)
            assert all(cell in as_text(table) and cell in as_markdown(table) for cell in row)
    for text in (text_report(report), markdown_report(report)):
        assert "Interrupted: 8 of 100 runs" in text and "A note." in text
        assert "org/target (commit 0123456789ab)" in text and "a chip, 8 GB" in text
    assert "block 3 | 2.00 | 0.50 |" in markdown_report(report)


def test_sizes_that_an_arm_chose_itself():
    sizes = ({"1": 1, "4": 3}, {"4": 2, "16": 2})
    runs = [drafting_run("block auto", f"a-{i}", 1.0, block_rounds=s) for i, s in enumerate(sizes)]
    report = made_report(runs=[made_run(), *runs], arms=["plain", "block auto"])
    (table,) = (t for t in tables(report) if t.title == "Share of rounds, by block size")
    assert table.headers == ["arm", "1", "4", "16"]
    assert table.rows == [["block auto", "12%", "62%", "25%"]]


def test_page_stands_alone():
    report = made_report(notes=["<script>alert(1)</script> & more"])
    text = page(report)
    found = Page(text)
    assert found.tags.count("svg") == 4 and found.tags.count("table") == 6
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not {"src", "href", "xlink:href"} & found.attributes
    assert not any(word in text for word in ("http:", "https:", "@import", "url(", "NaN", "inf"))
    assert "<script>alert(1)</script> & more" in found.texts
    for title in ("by kind of text", "by length of the prompt", "by position", "over time"):
        assert title in text
    # Bars and points are labelled with their values.
    for label in ("code, block 3: 2.00 [2.00, 2.00]", "block 3: 0.75 at 1", "plain: 10.00 at 100"):
        assert label in text


def unsteady(speed):
    """A report whose repetitions of one prompt are so many tokens a second apart."""
    runs = [
        dataclasses.replace(run, repeat=i, decode_tps=run.decode_tps + i * speed)
        for run in made_report().runs
        for i in range(2)
    ]
    return made_report(runs=runs, planned=len(runs))


@pytest.mark.parametrize(("speed", "warned"), [(0.1, False), (9.0, True)])
def test_repetitions_that_disagree_are_warned_of_above_all_numbers(speed, warned):
    report = unsteady(speed)
    texts = text_report(report), markdown_report(report), page(report)
    for text in texts:
        numbers = text.index("block 3")
        assert ("Careful: repetitions" in text[:numbers]) == warned
    careful = [text for text in Page(texts[2]).texts if text.startswith("Careful")]
    assert len(careful) == warned
    assert ("Careful: repetitions" in compare(made_report(), report, "a", "b")) == warned


def test_page_for_a_telephone_and_for_a_stranger():
    report = made_report(texts=[{"prompt": "code-1", "question": "Why <b>?", "answer": "So."}])
    report.settings["command"] = "dflash-mlx benchmark --repeats 1"
    text = page(report)
    # Plots and tables scroll in boxes of their own, and plots keep their size.
    assert text.count('<div class="wide"><svg') == 4 and "min-width: 42rem" in text
    assert text.count('<div class="wide"><table') == 6
    for said in ("dflash-mlx benchmark --repeats 1", "Why <b>?", "So.", "code-1", "2.00", "0.50"):
        assert said in Page(text).texts or any(said in found for found in Page(text).texts)
    assert text.count("<details>") == 1 and "<details open" not in text
    for word in ("An arm is", "÷ plain is", "τ is", "on top GB only", "text says whether"):
        assert word in text and word in " ".join(text_report(report).split())
        assert word in markdown_report(report)


@pytest.mark.parametrize(("count", "turned"), [(2, False), (9, True)])
def test_values_above_bars_do_not_run_into_one_another(count, turned):
    series = [Series(f"block {i}", "1") for i in range(count)]
    spread = Spread(1.69, 1.5, 1.8)
    chart = bar_chart(["a", "b", "c"], series, [[spread] * count] * 3, "÷ plain")
    labels = re.findall(r"<text ([^>]*)>1\.69</text>", chart)
    assert len(labels) == 3 * count
    places = [float(re.search(r'\bx="([0-9.]+)"', label)[1]) for label in labels]
    # Letters of 13 pixels are about 7 wide.
    room = 13 if turned else 4 * 7
    assert all(b - a >= room for a, b in itertools.pairwise(places))
    assert all(("rotate" in label) == turned for label in labels)


@pytest.mark.parametrize("high", [0.07, 0.9, 1.0, 1.69, 7.3, 20, 1234])
def test_axes_end_with_the_data(high):
    marks = ticks(high)
    assert marks[0] == 0 and 3 <= len(marks) <= 11 and marks == sorted(marks)
    assert high * 0.7 < marks[-1] <= high * 1.0001


def test_lines_are_broken_between_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    report = made_report(notes=["A " + "long " * 30 + "note."])
    lines = text_report(report).split("\n")
    prose = [line for line in lines if "  " not in line]
    assert max(map(len, prose)) <= 60 and "long note." in text_report(report)


def test_reports_of_the_version_before_are_read(tmp_path):
    content = json.loads(made_report().to_json()) | {"version": 1}
    del content["texts"]
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert Report.from_json(tmp_path / "a.json").texts == []


def test_page_of_little_or_nothing():
    assert "Nothing was measured" in "".join(Page(page(made_report(runs=[]))).texts)
    assert tables(made_report(runs=[])) == []
    one = made_report(runs=[made_run(decode_tps=None)], arms=["plain"])
    assert Page(page(one)).tags.count("svg") == 0
    both = made_report(runs=[made_run(), drafting_run("block 3", "code-1", 20.0)])
    assert Page(page(both)).tags.count("svg") == 3


def test_comparison_puts_equal_arms_side_by_side():
    first, second = made_report(), made_report()
    second.runs = [
        dataclasses.replace(run, decode_tps=2 * run.decode_tps)
        for run in second.runs
        if run.context == 0
    ]
    text = compare(first, second, "a.json", "b.json")
    (row,) = (line for line in text.splitlines() if line.startswith("block 3, code"))
    assert row.split()[-7:] == ["20.0", "40.0", "2.00", "2.00", "2.00", "2.00", "2.00"]
    # Medians over the prompts of both kinds.
    (row,) = (line for line in text.splitlines() if line.startswith("block 3, all kinds"))
    assert row.split()[-7:] == ["12.5", "25.0", "2.00", "1.25", "1.25", "2.00", "2.00"]
    assert "First: a.json, org/target, 2000" in text and "Second: b.json, org/target" in text
    assert "100 tokens" not in text
    assert "interrupted after 4 of 8" in text and text.count("Careful") == 1


def test_comparison_names_what_else_differs():
    first = made_report()
    machine = MACHINE | {"chip": "another", "versions": MACHINE["versions"] | {"mlx": "9"}}
    second = made_report(machine=machine, settings=first.settings | {"max_tokens": 5})
    second.models = second.models | {"drafter": None}
    found = "\n".join(differences(first, second))
    assert "chip is a chip in the first and another in the second" in found
    assert "versions mlx is 1 in the first and 9 in the second" in found
    assert "max tokens is 11" in found and "drafter is" in found
    first.settings["command"], second.settings["command"] = "a", "b"
    assert found == "\n".join(differences(first, second))
    assert found.count("\n") == 3 and differences(first, first) == []


def test_comparison_of_nothing_in_common():
    other = made_report(runs=[made_run("block 9", "poetry-1")], planned=1)
    assert "no arm, kind and length in common" in compare(made_report(), other, "a", "b")
