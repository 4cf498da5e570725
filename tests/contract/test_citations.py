"""One list of what to cite: CITATION.cff, `lsdflow cite` and the methods of reports agree."""

from __future__ import annotations

from pathlib import Path

import yaml

from lsdflow_contract.citations import REFERENCES, SOFTWARE, bibtex

REPOSITORY = Path(__file__).resolve().parents[2]


def _fields(entry: dict) -> tuple:
    """What of an entry of CITATION.cff a reference holds, too."""
    names = [a.get("name") or f"{a['family-names']}, {a['given-names']}" for a in entry["authors"]]
    pages = f"{entry['start']}-{entry['end']}" if "start" in entry else ""
    numbers = [str(entry.get(name, "")) for name in ("volume", "issue", "doi", "url")]
    return (tuple(names), entry["title"], entry.get("year"), entry.get("journal", ""), pages, *numbers)


def test_citation_cff_lists_the_references_of_the_contract_in_their_order() -> None:
    cff = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert cff["cff-version"] == "1.2.0"
    assert (cff["title"], cff["type"], cff["license"]) == (SOFTWARE.title, "software", "MIT")
    wanted = [(r.authors, r.title, r.year, r.journal, r.pages, r.volume, r.number, r.doi, r.url) for r in REFERENCES]
    assert [_fields(entry) for entry in cff["references"]] == wanted


def test_a_paper_is_one_line_of_text_and_an_entry_of_bibtex() -> None:
    paper = next(r for r in REFERENCES if r.key == "meila2007")
    assert paper.text() == (
        "Meilă M. Comparing clusterings: an information based distance. "
        "Journal of Multivariate Analysis 98(5), 873-895 (2007). doi:10.1016/j.jmva.2006.11.013"
    )
    entry = bibtex(paper)
    assert entry.startswith("@article{meila2007,")
    for field in ("volume = {98}", "number = {5}", "pages = {873--895}", "year = {2007}"):
        assert field in entry
    assert entry.count("{") == entry.count("}")
