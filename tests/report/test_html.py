"""The report as a page: whole in itself, hostile facts stay text, and every part of the report is in it."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from doctor import DoctorError, diagnose, render
from doctor.cli.main import run
from doctor.model import Evidence, Fact
from doctor.stress.page import as_html
from tests.helpers import browser
from tests.helpers.sweep_results import sweep_result

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"
MODELS = INCIDENTS.parent / "models"
NODES = Path(__file__).resolve().parents[1] / "fuzz" / "corpus" / "node" / "nodes.jsonl"
EVIL = "<script>alert(1)</script>\"'--><img src=x onerror=alert(1)>`<b>`\x1b[31m{{ 7*7 }}"
#: Two findings of one rule among several, on several GPUs and in several jobs.
SEVERAL = [
    "--requirements", str(INCIDENTS.parent / "declared" / "d.txt"), "--gpu", "a100,h100,b200",
    "--workload", str(INCIDENTS / "d" / "workload.yaml"),
    "--model", str(MODELS / "llama-3-8b.json"), "--model", str(MODELS / "gemma-2-9b.json"),
]  # fmt: skip
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """Tags with attributes in order; complains about what is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> where {self.open[-3:]} is open"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += f" {data}"


def page_of(letter: str) -> str:
    folder = INCIDENTS / letter
    return render(diagnose(facts=folder / "facts.yaml", workload=folder / "workload.yaml"), "html")


@pytest.mark.parametrize("letter", "abcdef")
def test_a_page_is_whole_and_checks_no_one_for_anything(letter: str):
    text = page_of(letter)
    page = Page(text)
    assert len(text.encode()) < 300_000
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img"), tag
        assert "src" not in attributes, attributes
        assert not [name for name in attributes if name.startswith("on")]
        if tag != "a":
            assert "href" not in attributes
    policy = next(found["content"] or "" for tag, found in page.tags if found.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "url(" not in text.partition("</style>")[0] and "@import" not in text
    ids = [found["id"] for _, found in page.tags if found.get("id")]
    assert len(ids) == len(set(ids))
    inside = {
        (found.get("href") or "")[1:] for tag, found in page.tags if tag == "a" and (found.get("href") or "")[:1] == "#"
    }
    assert inside <= set(ids)


def test_everything_the_report_says_is_on_the_page():
    folder = INCIDENTS / "b"
    report = diagnose(facts=folder / "facts.yaml", workload=folder / "workload.yaml")
    words = " ".join(Page(render(report, "html")).text.split())
    for finding in report.findings:
        assert finding.rule in words and " ".join(finding.why.split()) in words
        assert all(source in words for source in finding.references)
        assert all(item.key in words for item in finding.evidence)
    assert all(key in words for key in report.facts)
    assert all(fix.title.replace("`", "") in words for fix in report.fixes)
    assert all(item.backend in words for made in report.predictions for item in made.candidates)
    assert "twice the keys" in words  # a row of the heat map


def test_no_two_regions_of_a_page_have_the_same_name():
    report = diagnose(facts=INCIDENTS / "b" / "facts.yaml", workload=INCIDENTS / "b" / "workload.yaml")
    page = Page(render(report._replace(findings=report.findings * 2), "html"))
    names = [found["aria-label"] for _, found in page.tags if found.get("role") == "region"]
    assert len(names) == len(set(names))


def test_a_command_in_backticks_is_one_also_where_its_file_breaks_the_line():
    report = diagnose(facts=INCIDENTS / "b" / "facts.yaml", workload=INCIDENTS / "b" / "workload.yaml", fixes=False)
    text = render(report._replace(notes=("say `attn-doctor\n  backends` first",)), "html")
    assert "say <code>attn-doctor backends</code> first" in text


def test_hostile_facts_stay_text():
    report = diagnose(facts=INCIDENTS / "b" / "facts.yaml", workload=INCIDENTS / "b" / "workload.yaml")
    evil = Fact("torch.version", EVIL, EVIL)
    finding = report.findings[0]._replace(message=EVIL, summary=EVIL, why=EVIL, references=(f"javascript:{EVIL}",),
        evidence=(Evidence(EVIL, "", EVIL, evil, True),),
    )  # fmt: skip
    text = render(report._replace(findings=(finding,), notes=(EVIL,), facts=report.facts.with_(evil)), "html")
    page = Page(text)
    assert text.count("<script>") == 1 and "<img" not in text and "\x1b" not in text
    assert "{{ 7*7 }}" in page.text
    assert not [found for tag, found in page.tags if tag == "a" and (found.get("href") or "").startswith("javascript")]


def test_several_cases_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "requirements.txt").write_text(
        "torch==2.6.0\ntransformer-engine[pytorch]==2.3.0\nflash-attn==2.7.4.post1\n"
    )
    code = run([
        "check", "--requirements", str(tmp_path / "requirements.txt"), "--gpu", "a100,h100",
        "--model", str(MODELS / "llama-3-8b.json"), "--model", str(MODELS / "deepseek-v3.json"), "--format", "html",
    ])  # fmt: skip
    text = capsys.readouterr().out
    assert code in (0, 1)
    assert {"a100", "h100", "llama-3-8b", "deepseek-v3"} <= set(re.findall(r"[\w-]+", Page(text).text))
    assert len(text.encode()) < 300_000


def test_what_runs_and_fails_is_marked_so_and_what_a_fix_costs_is_said():
    words = " ".join(Page(page_of("b")).text.split())
    assert "te.fused fails" in words and "TransformerEngine: FusedAttention" in words
    assert "(5 to 30 minutes of compiling)" in words and "requires nvidia-cudnn-cu12==9.1.0.70" in words


def test_without_jinja2_one_line_says_so(monkeypatch: pytest.MonkeyPatch):
    report = diagnose(facts=INCIDENTS / "b" / "facts.yaml", fixes=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DoctorError, match="needs jinja2"):
        render(report, "html")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if browser.CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    folder = tmp_path_factory.mktemp("pages")
    made = []
    for letter in "bd":
        made.append(folder / f"{letter}.html")
        made[-1].write_text(page_of(letter), "utf-8")
    made.append(folder / "several.html")
    assert run(["check", *SEVERAL, "--format", "html", "--output", str(made[-1])]) == 1
    made.append(folder / "diff.html")
    sides = [str(INCIDENTS / letter / "facts.yaml") for letter in "bd"]
    assert run(["diff", *sides, "--format", "html", "--output", str(made[-1])]) in (0, 1)
    made.append(folder / "fleet.html")
    assert run(["fleet", "--snapshots", str(NODES), "--format", "html", "--output", str(made[-1])]) == 1
    for name, result in (("stress", sweep_result()), ("stress-good", sweep_result(bad=False))):
        made.append(folder / f"{name}.html")
        made[-1].write_text(as_html(result), "utf-8")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_it_without_scrolling_sideways(pages: list[Path], width: int, tmp_path: Path):
    for page in pages:
        probe = tmp_path / page.name
        script = "document.body.dataset.wide=document.documentElement.scrollWidth"
        probe.write_text(browser.with_script(page, script), "utf-8")
        found = re.search(r'data-wide="(\d+)"', browser.dom(probe, f"--window-size={width},900"))
        assert found and int(found[1]) <= width
        picture = tmp_path / f"{page.stem}-{width}.png"
        browser.screenshot(page, picture, width, 1200)
        assert picture.stat().st_size > 20_000


@pytest.mark.slow
def test_on_paper_nothing_is_folded_away_or_cut(pages: list[Path], tmp_path: Path):
    probe = tmp_path / "print.html"
    script = (
        "<script>dispatchEvent(new Event('beforeprint'));"
        "document.body.dataset.cut=[].filter.call(document.querySelectorAll('.wide'),"
        "function(e){return e.scrollWidth>e.clientWidth+1}).length</script></body>"
    )
    text = pages[0].read_text("utf-8").replace("</body>", script).replace("@media print", "@media screen")
    probe.write_text(text, "utf-8")
    shown = browser.dom(probe, "--window-size=720,1000")  # A4 within its margins
    assert "<details" in shown and "<details>" not in shown
    assert 'data-cut="0"' in shown


@pytest.mark.slow
def test_search_and_filter_hide_what_does_not_fit(pages: list[Path], tmp_path: Path):
    probe = tmp_path / "search.html"
    script = (
        "<script>var q=document.getElementById('query');q.value='cudnn.version';"
        "q.dispatchEvent(new Event('input',{bubbles:true}));</script></body>"
    )
    probe.write_text(pages[0].read_text("utf-8").replace("</body>", script), "utf-8")
    text = browser.dom(probe)
    rows = re.findall(r"<tr data-find=\"\"( hidden=\"\")?>(.*?)</tr>", text, re.S)
    assert rows and all(("cudnn.version" in row) is (not hidden) for hidden, row in rows)
    assert re.search(r'id="count"[^>]*>\d+ of \d+ shown', text)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(pages: list[Path], scheme: str, tmp_path: Path):
    axe = browser.fetch_axe(tmp_path)
    flags = ("--blink-settings=preferredColorScheme=0",) if scheme == "dark" else ()
    for page in pages:
        assert browser.violations(page, axe, *flags) == []
    broken = tmp_path / "broken.html"
    broken.write_text("<!doctype html><html><body><img src=x><input></body></html>", "utf-8")
    assert browser.violations(broken, axe)  # it would have said so


def test_several_cases_begin_with_a_grid_of_gpus_and_jobs(tmp_path: Path):
    target = tmp_path / "several.html"
    assert run(["check", *SEVERAL, "--no-run", "--format", f"html={target}"]) == 1
    text = target.read_text("utf-8")
    Page(text)
    assert text.index('id="grid"') < text.index('id="findings"')
    grid = text[text.index('id="grid"') : text.index('id="findings"')]
    heads = re.findall(r'<th scope="col">([^<]*)</th>', grid)
    assert heads[0] == "GPU" and len(heads) == 3
    assert re.findall(r'<th scope="row">([^<]*)</th>', grid) == ["a100", "h100", "b200"]
    cells = re.findall(r'<td class="g-(\w+)"><span class="word">(\w+)</span>', grid)
    assert len(cells) == 6
    assert {look for look, _ in cells} <= {"error", "warning", "ok", "unclear"}
    targets = set(re.findall(r'href="#(f\d+)"', grid))
    assert targets and all(f'id="{name}"' in text for name in targets)
    assert 'id="grid"' not in page_of("b")


def test_the_header_names_target_and_date():
    head = page_of("b").partition("</header>")[0]
    assert "facts in " in head and re.search(r'<time datetime="\d{4}-\d\d-\d\d">', head)
    assert all(f"<dt>{name}</dt>" in head for name in ("Target", "Machine", "Packages", "Workload"))


def test_there_is_one_block_of_fixes_and_findings_link_to_it():
    text = page_of("b")
    assert len(re.findall(r"<h2[^>]*>Fixes</h2>", text)) == 1
    article = text[text.index("<article") : text.index("</article>")]
    links = re.findall(r'href="#(fix\d+)"', article)
    assert links and all(f'id="{name}"' in text for name in links)
    assert "<pre" not in article.partition("<details")[0], "commands of the rule are folded away"


def test_addresses_in_sources_and_reasons_are_links():
    report = diagnose(facts=INCIDENTS / "b" / "facts.yaml", workload=INCIDENTS / "b" / "workload.yaml", run=False)
    finding = report.findings[0]._replace(references=("see https://example.org/a_(b), and <x>",))
    text = render(report._replace(findings=(finding,)), "html")
    assert (
        '<li>see <a href="https://example.org/a_" rel="noreferrer">https://example.org/a_</a>(b), and &lt;x&gt;' in text
    )
    plain = page_of("b")
    for source in report.findings[0].references:
        assert f'<a href="{source}"' in plain


def test_tables_scroll_and_keep_their_first_column():
    style = page_of("b").partition("</style>")[0]
    assert ".wide{overflow-x:auto}" in style
    assert re.search(r"\.wide th\[scope=row\][^{]*\{position:sticky;left:0;background", style)
