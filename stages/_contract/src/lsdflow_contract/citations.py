"""What to cite: lsdflow itself, the papers of the method, and the software that computes a segmentation.

The methods of reports, `lsdflow cite` and CITATION.cff show the same list (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A paper (`journal`, `pages`, `doi`), or software (`url`). `authors`: "Family, Given", or one name of a group."""

    key: str
    authors: tuple[str, ...]
    title: str
    year: int | None = None
    journal: str = ""
    volume: str = ""
    number: str = ""
    pages: str = ""
    doi: str = ""
    url: str = ""

    def text(self) -> str:
        """The reference as one line of a list."""
        issue = f"({self.number})" if self.number else ""
        place = f" {self.journal} {self.volume}{issue}, {self.pages}" if self.journal else ""
        year = f" ({self.year})" if self.year else ""
        where = f". doi:{self.doi}" if self.doi else f". {self.url}" if self.url else ""
        return f"{', '.join(map(_short, self.authors))}. {self.title}.{place}{year}{where}".replace("..", ".")


SOFTWARE = Reference(
    key="lsdflow",
    authors=("The lsdflow developers",),
    title="lsdflow: neuron segmentation of electron- and expansion-microscopy volumes with local shape descriptors",
)

REFERENCES = (
    Reference(
        key="sheridan2023",
        authors=(
            "Sheridan, Arlo",
            "Nguyen, Tri M.",
            "Deb, Diptodip",
            "Lee, Wei-Chung Allen",
            "Saalfeld, Stephan",
            "Turaga, Srinivas C.",
            "Manor, Uri",
            "Funke, Jan",
        ),
        title="Local shape descriptors for neuron segmentation",
        year=2023,
        journal="Nature Methods",
        volume="20",
        pages="295-303",
        doi="10.1038/s41592-022-01711-z",
    ),
    Reference(
        key="funke2019",
        authors=(
            "Funke, Jan",
            "Tschopp, Fabian",
            "Grisaitis, William",
            "Sheridan, Arlo",
            "Singh, Chandan",
            "Saalfeld, Stephan",
            "Turaga, Srinivas C.",
        ),
        title="Large scale image segmentation with structured loss based deep learning for connectome reconstruction",
        year=2019,
        journal="IEEE Transactions on Pattern Analysis and Machine Intelligence",
        volume="41",
        number="7",
        pages="1669-1680",
        doi="10.1109/TPAMI.2018.2835450",
    ),
    Reference(
        key="meila2007",
        authors=("Meilă, Marina",),
        title="Comparing clusterings: an information based distance",
        year=2007,
        journal="Journal of Multivariate Analysis",
        volume="98",
        number="5",
        pages="873-895",
        doi="10.1016/j.jmva.2006.11.013",
    ),
    Reference(
        key="gunpowder",
        authors=("funkelab",),
        title="gunpowder: data loading and augmentation for learning on large volumes",
        url="https://github.com/funkelab/gunpowder",
    ),
    Reference(
        key="daisy",
        authors=("funkelab",),
        title="daisy: block-wise task scheduling for large volumes",
        url="https://github.com/funkelab/daisy",
    ),
    Reference(
        key="waterz",
        authors=("funkelab",),
        title="waterz: watershed and region agglomeration",
        url="https://github.com/funkelab/waterz",
    ),
    Reference(
        key="wolf2021",
        authors=(
            "Wolf, Steffen",
            "Bailoni, Alberto",
            "Pape, Constantin",
            "Rahaman, Nasim",
            "Kreshuk, Anna",
            "Köthe, Ullrich",
            "Hamprecht, Fred A.",
        ),
        title="The mutex watershed and its objective: efficient, parameter-free graph partitioning",
        year=2021,
        journal="IEEE Transactions on Pattern Analysis and Machine Intelligence",
        volume="43",
        number="10",
        pages="3724-3738",
        doi="10.1109/TPAMI.2020.2980827",
    ),
)


def bibtex(reference: Reference) -> str:
    """The BibTeX entry of a reference."""
    fields = {
        "author": " and ".join(name if ", " in name else f"{{{name}}}" for name in reference.authors),
        "title": f"{{{reference.title}}}",
        "journal": reference.journal,
        "volume": reference.volume,
        "number": reference.number,
        "pages": reference.pages.replace("-", "--"),
        "year": str(reference.year or ""),
        "doi": reference.doi,
        "url": reference.url,
    }
    kind = "article" if reference.doi else "misc"
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{reference.key},", *lines, "}\n"])


def _short(name: str) -> str:
    """A short name such as "Sheridan A"; the name of a group is not changed."""
    family, comma, given = name.partition(", ")
    if not comma:
        return name
    initials = "".join(part[0] for part in given.replace("-", " ").split())
    return f"{family} {initials}"
