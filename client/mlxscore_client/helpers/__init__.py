"""What people make of loglikelihoods: rankings, classes, perplexities, surprisal, PMI, DPO references.

Pure: each helper is a generator that yields jobs, is sent their results, and returns its own. So the
formulas are written once for both clients. Knows no httpx.
"""

from mlxscore_client.helpers.choices import Normalize
from mlxscore_client.helpers.classification import Calibration, Classification, Labels
from mlxscore_client.helpers.dpo import DPOLogps, TruncationMode
from mlxscore_client.helpers.perplexities import Perplexity
from mlxscore_client.helpers.pointwise import PMI
from mlxscore_client.helpers.preferences import Prompt
from mlxscore_client.helpers.ranking import Ranked
from mlxscore_client.helpers.result import Conversation, Steps
from mlxscore_client.helpers.surprisals import Surprisal, TokenSurprisal, Unit, WordSurprisal

__all__ = [
    "PMI",
    "Calibration",
    "Classification",
    "Conversation",
    "DPOLogps",
    "Labels",
    "Normalize",
    "Perplexity",
    "Prompt",
    "Ranked",
    "Steps",
    "Surprisal",
    "TokenSurprisal",
    "TruncationMode",
    "Unit",
    "WordSurprisal",
]
