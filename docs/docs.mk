# The documentation site. Its pages are the Markdown files of the repository, each at its path, and pages that
# docs/generate/ makes from the code. `site/` is built from nothing every time.
.PHONY: docs test-docs lock-docs

DOCS := .venv/docs
DOCS_TESTS := tests/docs
DOCS_PAGES := .cache/docs

$(DOCS)/.installed: $(UV) docs/requirements.lock
	$(UV) venv --quiet --clear --python $(PYTHON) $(DOCS)
	$(UV) pip sync --quiet --python $(DOCS)/bin/python --require-hashes docs/requirements.lock
	@touch $@

docs: setup $(DOCS)/.installed  ## the documentation site: site/index.html; a broken link or anchor ends it
	rm -rf $(DOCS_PAGES) && mkdir -p $(DOCS_PAGES)/docs
	for env in blocks training; do .venv/$$env/bin/python docs/generate/facts.py > $(DOCS_PAGES)/$$env.json; done
	.venv/blocks/bin/python docs/generate/pages.py $(DOCS_PAGES)/docs $(DOCS_PAGES)/blocks.json $(DOCS_PAGES)/training.json
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs --quiet build --strict

test-docs: docs  ## builds the site; checks it, and every command of README.md and docs/
	LSDFLOW_BIN=$(CURDIR)/bin .venv/blocks/bin/pytest $(IN_TWO) $(DOCS_TESTS)

lock-docs: $(UV)  ## resolve docs/requirements.in again
	$(COMPILE) docs/requirements.in -o docs/requirements.lock
