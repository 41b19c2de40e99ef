import io

import pytest

from doctor.diagnosis.logs.explain import LogExplainer
from doctor.diagnosis.logs.source import LogSource
from doctor.rulebook.rulebook import load_rulebook
from doctor.rulebook.signatures import load_log_rules


@pytest.fixture(scope="session")
def explainer():
    return LogExplainer(load_rulebook(), load_log_rules())


@pytest.fixture
def explain(explainer):
    def explain(text, **options):
        return explainer.explain(LogSource("log", io.BytesIO(text.encode())), **options)

    return explain
