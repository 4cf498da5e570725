"""The report of an experiment: `ReportData` in, one self-contained page of HTML out (`render_report`)."""

from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.page import render_report

__all__ = ["ReportData", "render_report"]
