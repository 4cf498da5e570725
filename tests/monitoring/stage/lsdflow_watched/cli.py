"""The watched stage as a command: python -m lsdflow_watched.cli run --experiment E."""

from lsdflow_command.app import StageCommand, stage_app
from lsdflow_contract.model import StrictModel

app = stage_app(StageCommand("watched", StrictModel))

if __name__ == "__main__":
    app()
