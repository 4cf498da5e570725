"""The report of an experiment: `ReportData` in, self-contained pages of HTML out (`render_pages`)."""

from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.page import render_pages, render_report

__all__ = ["ReportData", "render_pages", "render_report"]
