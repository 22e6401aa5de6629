#!/usr/bin/env python3
"""Compares `ingot eval --tasks` with lm-evaluation-harness: the same files, the same model, every log-likelihood and metric within 1e-3 (perplexities:
of their size).

    tools/check_harness.py [INGOT] [--rows N] [--run RUN] [--serve]

Needs lm_eval==0.4.9, transformers<5, datasets<4, torch. Makes files in the published formats, a tokenizer, a run of ingot that is exported,
and a Qwen2 of transformers that is imported; --run takes another run with a tokenizer. --serve: lm_eval asks `ingot serve --model` through its
local-completions (which needs lm_eval[api]); texts that a model of few positions cannot see as a whole are left out, for the API cuts them elsewhere. The standard error of LAMBADA's perplexity is left out:
lm_eval draws it by bootstrap, ingot computes it to first order."""
import argparse
import csv
import json
import math
import os
import random
import re
import subprocess
import tempfile
from contextlib import contextmanager

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import lm_eval
import torch
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from lm_eval.utils import load_yaml_config
from transformers import AutoModelForCausalLM, Qwen2Config

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TOLERANCE = 1e-3
POSITIONS = 200 # the fewest of the models below
WORDS = ("the of and king lord said unto him house people came went Day god land son Water fire light stone 12 7 naïve Café über don't "
         "first. second, third; \"quoted\" (aside) re-read A B").split()
rnd = random.Random(7)
failures = compared = 0


def text(least, most):
    return " ".join(rnd.choice(WORDS) for _ in range(rnd.randint(least, most)))


def ingot(*words, binary=None):
    r = subprocess.run([binary, *words], capture_output=True, text=True, env={**os.environ, "INGOT_LOG": "error"})
    if r.returncode != 0:
        raise SystemExit(f"ingot {' '.join(words)}: {r.stderr}")
    return r.stdout


def write_jsonl(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=rnd.random() < 0.5) + "\n")
    return path


def hellaswag(i):
    marks = ["", " [title]", " [step] ", "  ", " [substeps]"]
    return {"ind": i, "activity_label": text(1, 3), "ctx_a": text(4, 12) + rnd.choice(marks), "ctx_b": rnd.choice(["", text(1, 3), "ÉTÉ " + text(1, 2)]),
            "ctx": "", "split": "val", "label": rnd.randint(0, 3), "endings": [text(3, 20) + rnd.choice(marks) for _ in range(4)]}


def arc(i):
    n = rnd.choice([3, 4, 4, 5])
    labels = rnd.choice(["ABCDE", "12345"])[:n]
    return {"id": str(i), "question": text(4, 15) + "?", "choices": {"text": [text(1, 6) for _ in range(n)], "label": list(labels)},
            "answerKey": rnd.choice(labels)}


def arc_published(row):
    choices = [{"text": t, "label": k} for t, k in zip(row["choices"]["text"], row["choices"]["label"])]
    return {"id": row["id"], "question": {"stem": row["question"], "choices": choices}, "answerKey": row["answerKey"]}


def piqa(i):
    return {"goal": text(2, 10) + rnd.choice(["", "?", " "]), "sol1": text(2, 20), "sol2": text(2, 20), "label": rnd.randint(0, 1)}


def winogrande(i):
    return {"qID": str(i), "sentence": text(2, 8) + " _ " + text(1, 8) + rnd.choice([".", " ."]), "option1": text(1, 1), "option2": text(1, 2),
            "answer": str(rnd.randint(1, 2))}


def mmlu(subject):
    return {"question": rnd.choice(["", " "]) + text(3, 20) + rnd.choice(["", "\n" + text(2, 4), " "]), "subject": subject,
            "choices": [text(1, 6) for _ in range(4)], "answer": rnd.randint(0, 3)}


def make_files(work, n, long):
    """By task of lm_eval: (its rows, its split, ingot's NAME=FILE)."""
    path = lambda name: os.path.join(work, name)
    tasks = {}
    rows = [hellaswag(i) for i in range(n)]
    tasks["hellaswag"] = rows, "validation", "hellaswag=" + write_jsonl(path("hellaswag_val.jsonl"), rows)
    for name in "arc_easy", "arc_challenge":
        rows = [arc(i) for i in range(n)]
        published = rows if name == "arc_easy" else [arc_published(row) for row in rows]
        tasks[name] = rows, "test", f"{name}=" + write_jsonl(path(name + ".jsonl"), published)
    rows = [piqa(i) for i in range(n)]
    bare = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    with open(path("valid-labels.lst"), "w") as f:
        f.writelines(f"{row['label']}\n" for row in rows)
    tasks["piqa"] = rows, "validation", "piqa=" + write_jsonl(path("valid.jsonl"), bare)
    rows = [winogrande(i) for i in range(n)]
    tasks["winogrande"] = rows, "validation", "winogrande=" + write_jsonl(path("dev.jsonl"), rows)
    for subject in "high_school_biology", "anatomy":
        rows = [mmlu(subject) for i in range(n)]
        with open(path(f"{subject}_test.csv"), "w", newline="", encoding="utf-8") as f:
            csv.writer(f).writerows([row["question"], *row["choices"], "ABCD"[row["answer"]]] for row in rows)
        tasks["mmlu_" + subject] = rows, "test", "mmlu=" + path(f"{subject}_test.csv")
    rows = [{"text": text(1 if i == 0 else 4, 40) if i else "word"} for i in range(n)] + [{"text": text(long, long)}]
    tasks["lambada_openai"] = rows, "test", "lambada=" + write_jsonl(path("lambada.jsonl"), rows)
    rows = [{"text": text(1, 30) + rnd.choice(["", "\n\n" + text(2, long)])} for i in range(n)]
    tasks["perplexity"] = rows, "test", "perplexity=" + write_jsonl(path("texts.jsonl"), rows)
    return tasks


def task_of(name, rows, split, work, index):
    """lm_eval's own task, on these rows."""
    if name == "perplexity":
        config = dict(task=name, output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="{{text}}",
                      metric_list=[{"metric": m} for m in ("word_perplexity", "byte_perplexity", "bits_per_byte")])
    else:
        config = load_yaml_config(index[name]["yaml_path"], mode="full")
    file = write_jsonl(os.path.join(work, f"lm_eval_{name}.jsonl"), rows)
    drop = ("dataset_name", "training_split", "validation_split", "test_split", "fewshot_split", "fewshot_config", "dataset_kwargs", "tag", "group", "task_alias")
    config = {k: v for k, v in config.items() if k not in drop}
    config.update(dataset_path="json", dataset_kwargs={"data_files": {split: file}}, **{split + "_split": split})
    return ConfigurableTask(config=config)


def check(what, mine, theirs):
    global failures, compared
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in (mine, theirs)):
        return None
    compared += 1
    difference = abs(mine - theirs) / (max(1.0, abs(theirs)) if what.endswith("perplexity") else 1.0)
    if difference > TOLERANCE:
        failures += 1
        print(f"FAILED  {what}: ingot {mine}, lm_eval {theirs}")
    return difference


@contextmanager
def judge(work, run, directory, binary, serve):
    """lm_eval's model: the exported directory, or the server's."""
    if not serve:
        yield HFLM(pretrained=directory, dtype="float32", device="cpu", batch_size=4)
        return
    token = os.path.join(work, "token")
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write("k" * 20 + "\n")
    server = subprocess.Popen([binary, "serve", "--model", run, "--port", "0", "--token-file", token], stdout=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://[^/]*", server.stdout.readline() or "")
        if not url:
            raise SystemExit("ingot serve does not start")
        os.environ["OPENAI_API_KEY"] = "k" * 20
        yield LocalCompletionsAPI(base_url=url[0] + "/v1/completions", model=run, tokenizer=directory, tokenized_requests=True, batch_size=4,
                                  num_concurrent=3, max_length=POSITIONS + 1)
    finally:
        server.terminate()
        if server.wait() != 0:
            raise SystemExit(f"ingot serve ends with {server.returncode}")


def compare(name, work, tasks, run, directory, binary, serve):
    samples = os.path.join(work, f"{name}.samples.jsonl")
    words = [w for _, _, file in tasks.values() for w in ("--tasks", file)]
    mine = json.loads(ingot("eval", run, *words, "--samples", samples, "--json", binary=binary))["tasks"]
    rows = iter([json.loads(line) for line in open(samples, encoding="utf-8")])
    index = TaskManager().task_index
    own = [task_of(task, *tasks[task][:2], work, index) for task in tasks]
    with judge(work, run, directory, binary, serve) as model:
        results = lm_eval.simple_evaluate(model=model, tasks=own, num_fewshot=0, bootstrap_iters=100, log_samples=True)
    for task, result in zip(tasks, mine):
        worst, counted = 0.0, 0
        for sample in sorted(results["samples"][task], key=lambda s: s["doc_id"]):
            row = next(rows)
            theirs = [r[0] for r in sample["resps"]]
            theirs = [r[0] if isinstance(r, (tuple, list)) else r for r in theirs]
            got = row["loglikelihoods"] if task != "perplexity" else [sum(row["loglikelihoods"])]
            if len(got) != len(theirs):
                raise SystemExit(f"{task}: row {row['line']} has {len(got)} log-likelihoods, lm_eval {len(theirs)}")
            for a, b in zip(got, theirs):
                worst = max(worst, check(f"{name}: {task} line {row['line']}: log-likelihood", a, float(b)) or 0)
                counted += 1
            for metric in "acc", "acc_norm":
                if metric in sample:
                    check(f"{name}: {task} line {row['line']}: {metric}", row.get(metric), sample[metric])
        shown = []
        for metric, value in results["results"][task].items():
            key = metric.replace(",none", "")
            if key != "perplexity_stderr" and check(f"{name}: {task}: {key}", result.get(key), value) is not None:
                shown.append(f"{key} {result[key]:.4f}")
        print(f"{name}: {task}: {counted} log-likelihoods differ by {worst:.1e}; {', '.join(shown)}", flush=True)


def make_models(work, tasks, binary):
    """(name, run, directory): a run that is exported, and a model of transformers that is imported."""
    corpus, tok = os.path.join(work, "corpus.txt"), os.path.join(work, "tok")
    with open(corpus, "w", encoding="utf-8") as f:
        f.write("\n\n".join(text(5, 60) for _ in range(600)))
    say = lambda *w: ingot(*w, binary=binary)
    say("tokenizer", "train", corpus, "--vocab-size", "380", "-o", tok)
    say("data", "build", corpus, "--tokenizer", tok, "--separator", "blank", "--val-fraction", "0.1", "-o", work + "/c")
    run, out = work + "/run", work + "/run.hf"
    say("train", f"--data.train={work}/c_train_*.bin", f"--data.val={work}/c_val_*.bin", f"--run.dir={run}", "--train.steps=30", "--train.precision=fp32",
        "--model.layer_count=2", "--model.hidden_size=64", "--model.ffn_size=128", "--model.head_count=4", "--model.context_length=256",
        "--train.sequence_length=128", "--train.batch_tokens=2048", "--train.micro_batch=2", "--optim.lr=5e-3", "--model.init_std=0.15")
    say("ckpt", "export", run, "-o", out)
    torch.manual_seed(3)
    config = Qwen2Config(vocab_size=384, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=POSITIONS, initializer_range=0.2, use_sliding_window=False)
    foreign, imported = work + "/qwen2", work + "/imported"
    AutoModelForCausalLM.from_config(config).float().save_pretrained(foreign)
    subprocess.run(["sh", "-c", f"cp {tok}/*.json {foreign}"], check=True)
    say("ckpt", "import", foreign, "-o", imported)
    return [("exported", run, out), ("imported", imported, foreign)]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("ingot", nargs="?", default=os.path.join(ROOT, "build/cpu/ingot"))
    p.add_argument("--rows", type=int, default=24, help="of each task")
    p.add_argument("--serve", action="store_true", help="ask ingot serve")
    p.add_argument("--run", help="a run with a tokenizer, in place of the two small models")
    a = p.parse_args()
    binary = os.path.abspath(a.ingot)
    with tempfile.TemporaryDirectory() as work:
        tasks = make_files(work, a.rows, 60 if a.serve else 300)
        if a.run:
            ingot("ckpt", "export", a.run, "-o", work + "/run.hf", binary=binary)
            models = [("run", a.run, work + "/run.hf")]
        else:
            models = make_models(work, tasks, binary)
        for model in models:
            compare(model[0], work, tasks, *model[1:], binary, a.serve)
    print(f"{compared} numbers compared, {failures} differ by more than {TOLERANCE}")
    raise SystemExit(failures != 0 or compared == 0)


main()
