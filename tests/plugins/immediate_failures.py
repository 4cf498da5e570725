"""Print failures immediately, so that a run that is ended before its summary has shown them."""

from __future__ import annotations

import pytest


class _Printer:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The name of what failed, and why."""
        if report.failed:
            self.terminal.write_line(f"\nFAILED now: {report.nodeid}\n{report.longreprtext}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Only the process that has a terminal prints."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_Printer(terminal), "immediate-failures")
