"""Makes tests/golden/helpers.json: what minicons, lm-evaluation-harness and TRL themselves compute.

All on the default model's own weights, float32, on a CPU, one text at a time. In an environment with
`torch transformers minicons lm_eval trl` (made with torch 2.13.0, transformers 5.24.0, minicons
0.3.39, lm_eval 0.4.13, trl 1.16.0):

    python scripts/reference_helpers.py FOLDER    # where `mlxscore-server --print-default-model` says

Surprisal and sentence scores are minicons' methods, rolling loglikelihoods and their perplexities
lm-evaluation-harness's, reference logprobs the columns that TRL's DPOTrainer adds to its dataset. For
classification there is no such library: label loglikelihoods are minicons', and the formulas of Zhao et
al. (2021) and Holtzman et al. (2021) are written out here once more, in torch, on probabilities.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
from lm_eval.api.task import PerplexityTask
from lm_eval.models.huggingface import HFLM
from minicons.scorer import IncrementalLMScorer
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

GOLDEN = Path(__file__).parent.parent / "tests" / "golden" / "helpers.json"

SENTENCES = [
    "The keys to the cabinet are on the table.",
    "The keys to the cabinet is on the table.",
    "The horse raced past the barn fell.",
    "While the man hunted the deer ran into the woods.",
    "The children went outside to play.",
    "The complex houses married and single soldiers and their families.",
    "A colourless green idea sleeps furiously in Timbuktu.",
    "Nobody knew what the antidisestablishmentarians wanted.",
    "He spread the warm bread with socks.",
    "He spread the warm bread with butter.",
    "In 1912, the ship sank after it hit an iceberg.",
    "It cost $3.50, which wasn't much.",
    "She said that she'd never been there before.",
    "The quick brown fox jumps over the lazy dog.",
    "Water boils at 100 degrees Celsius at sea level.",
    "The author that the journalists interviewed was tired.",
    "Naïve café owners rarely use umlauts like ö or ü.",
    "Der alte Mann ging langsam nach Hause.",
    "The capital of France is Paris.",
    "The capital of France is London.",
    "My dog ate my homework again yesterday.",
    "Photosynthesis turns light into chemical energy.",
    "No sooner had he left than it began to rain.",
    "I think, therefore I am.",
    "To be or not to be, that is the question.",
    "The nurse gave the patient his medicine.",
    "Snow fell all night and covered the roofs.",
    "They have eaten all of the cookies.",
    "They has eaten all of the cookies.",
    "Every student who passed the exams celebrated.",
    "x = 3; y = x + 4",
    "Hello",
]

REVIEWS = [
    "A dull film.",
    "I loved every minute of it!",
    "The plot makes no sense at all.",
    "A warm, funny and moving story.",
    "Two hours of my life that I will never get back.",
    "The actors are wonderful, the script is not.",
]
TASKS = [
    ("Review: {text}\nSentiment:", [" positive", " negative", " neither good nor bad"]),
    ("{text} All in all, the film was", [" great", " terrible"]),
]
CONTENT_FREE = ["N/A", "[MASK]", ""]
# What follows {text} in the template: the domain premise.
DOMAINS = ["Sentiment:", "All in all, the film was"]

QUESTIONS = [
    ("What is 2 + 2?", "4", "A fish"),
    ("Name a colour.", "Blue.", "Tuesday, I suppose."),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet.", "Bob"),
    ("Say hello.", "Hello! How can I help you today?", "No."),
    ("What is the capital of France?", "The capital of France is Paris.", "It is Berlin."),
    ("Translate 'dog' to German.", "Hund", "Katze, naturally"),
    ("Is the earth flat?", "No, it is round.", "Yes"),
    ("Why is the sky blue?", "Because air scatters blue light more.", "Paint. Lots of paint."),
    ("Give me a word.", " word", "\n\nwords"),
    ("Finish: one, two,", "three", "naïve ö 日本"),
    ("How many legs has a spider?", "Eight legs.", "Six"),
    ("What do cows drink?", "Cows drink water.", "Cows drink milk."),
]
Cut = tuple[int | None, str]
OF_TEXTS: list[Cut] = [(None, "keep_start"), (15, "keep_start"), (12, "keep_end"), (3, "keep_end")]
OF_CHATS: list[Cut] = [(None, "keep_start"), (43, "keep_start"), (40, "keep_end"), (3, "keep_end")]


def surprisals(lm: Any) -> list[dict[str, Any]]:
    """Nats. minicons' words are those of str.split."""
    found: list[dict[str, Any]] = []
    for text in SENTENCES:
        options: dict[str, Any] = {"bos_token": True, "surprisal": True}
        (tokens,) = lm.token_score(text, **options)
        (plain,) = lm.word_score_tokenized(text, str.split, **options)
        (corrected,) = lm.word_score_tokenized(text, str.split, bow_correction=True, **options)
        (mean,) = lm.sequence_score(text, bos_token=True)
        found.append(
            {
                "text": text,
                # The first is the BOS, to which it gives 0.
                "tokens": [value for _, value in tokens][1:],
                "words": [word for word, _ in plain],
                "surprisal": [value for _, value in plain],
                "bow_correction": [value for _, value in corrected],
                "sentence_score": mean,
            }
        )
    return found


def perplexities(model: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """Of each sentence, and of growing groups of them."""
    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1)
    requests = [
        Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(SENTENCES)
    ]
    lls = harness.loglikelihood_rolling(requests)
    groups = [[i] for i in range(len(SENTENCES))] + [list(range(n)) for n in (2, 5, 11, 32)]
    found: list[dict[str, Any]] = []
    for group in groups:
        words = [(lls[i], PerplexityTask.count_words(SENTENCES[i])) for i in group]
        sizes = [(lls[i], PerplexityTask.count_bytes(SENTENCES[i])) for i in group]
        tokens = [(lls[i], len(tokenizer(SENTENCES[i]).input_ids)) for i in group]
        found.append(
            {
                "texts": [SENTENCES[i] for i in group],
                "loglikelihood": sum(lls[i] for i in group),
                "token_perplexity": weighted_perplexity(tokens),
                "word_perplexity": weighted_perplexity(words),
                "byte_perplexity": weighted_perplexity(sizes),
                "bits_per_byte": bits_per_byte(sizes),
            }
        )
    return found


def classes(lm: Any) -> list[dict[str, Any]]:
    def label_probs(context: str, labels: list[str]) -> torch.Tensor:
        lls = [
            lm.conditional_score(context, label, separator="", reduction=lambda x: x.sum().item())
            for label in labels
        ]
        return torch.tensor(lls, dtype=torch.float64)[:, 0].exp()

    found: list[dict[str, Any]] = []
    for (template, labels), domain in zip(TASKS, DOMAINS, strict=True):
        of_free = [label_probs(template.replace("{text}", text), labels) for text in CONTENT_FREE]
        prior = torch.stack(of_free).mean(0)
        weights = torch.linalg.inv(torch.diag(prior / prior.sum()))
        of_domain = label_probs(domain, labels)
        for text in REVIEWS:
            probs = label_probs(template.replace("{text}", text), labels)
            for calibration, calibrated in {
                "none": probs,
                "contextual": weights @ (probs / probs.sum()),
                "pmi": probs / of_domain,
            }.items():
                found.append(
                    {
                        "text": text,
                        "template": template,
                        "labels": labels,
                        "calibration": calibration,
                        "loglikelihoods": probs.log().tolist(),
                        "log_probabilities": (calibrated / calibrated.sum()).log().tolist(),
                    }
                )
    return found


def dpo(model: Any, tokenizer: Any) -> list[dict[str, Any]]:
    def message(role: str, content: str) -> list[dict[str, str]]:
        return [{"role": role, "content": content}]

    texts = [
        {"prompt": f"Question: {q}\nAnswer:", "chosen": f" {yes}", "rejected": f" {no}"}
        for q, yes, no in QUESTIONS
    ]
    chats = [
        {
            "prompt": message("user", q),
            "chosen": message("assistant", yes),
            "rejected": message("assistant", no),
        }
        for q, yes, no in QUESTIONS
    ]
    found: list[dict[str, Any]] = []
    for rows, cuts in ((texts, OF_TEXTS), (chats, OF_CHATS)):
        for max_length, mode in cuts:
            with tempfile.TemporaryDirectory() as folder:
                config = DPOConfig(
                    output_dir=folder,
                    precompute_ref_log_probs=True,
                    per_device_train_batch_size=1,
                    max_length=max_length,
                    truncation_mode=mode,
                    use_cpu=True,
                    bf16=False,
                    gradient_checkpointing=False,
                    report_to="none",
                )
                numbered = [{**row, "row": i} for i, row in enumerate(rows)]
                trainer = DPOTrainer(
                    model=model,
                    args=config,
                    train_dataset=Dataset.from_list(numbered),
                    processing_class=tokenizer,
                )
                # It drops those whose prompt alone is too long.
                for line in trainer.train_dataset:
                    found.append(
                        {
                            **rows[line["row"]],
                            "max_length": max_length,
                            "truncation_mode": mode,
                            "ref_chosen_logps": line["ref_chosen_logps"],
                            "ref_rejected_logps": line["ref_rejected_logps"],
                        }
                    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the default model's")
    folder = str(parser.parse_args().folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lm = IncrementalLMScorer(model, "cpu", tokenizer=tokenizer)
    made = {
        "surprisal": surprisals(lm),
        "perplexity": perplexities(model, tokenizer),
        "classify": classes(lm),
        # Last: a trainer may change what it is given.
        "dpo_logps": dpo(model, tokenizer),
    }
    lines = [
        f" {json.dumps(name)}: [\n"
        + ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in cases)
        + "\n ]"
        for name, cases in made.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print({name: len(cases) for name, cases in made.items()})


if __name__ == "__main__":
    main()
