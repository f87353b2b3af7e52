"""Prometheus texts of several servers as one: each sample gets the label `replica`, each family one head.

# TYPE octavo_blocks gauge                    # TYPE octavo_blocks gauge
octavo_blocks{state="free"} 5        -->      octavo_blocks{replica="replica-0",state="free"} 5
                                              octavo_blocks{replica="replica-1",state="free"} 7
"""

from __future__ import annotations

from collections.abc import Mapping


def merged_metrics(texts: Mapping[str, str]) -> str:
    """One text of those of each name. O(bytes)."""
    heads, samples = dict[str, list[str]](), dict[str, list[str]]()
    for name, text in texts.items():
        label, own = f'replica="{name}"', list[str]()
        for line in text.splitlines():
            if line.startswith("# "):
                family = line.split(" ", 3)[2]
                own = samples.setdefault(family, [])
                head = heads.setdefault(family, [])
                if len(head) < 2 and line not in head:
                    head.append(line)
            elif line:
                own.append(_labelled(line, label))
    return "".join(f"{line}\n" for family, head in heads.items() for line in (*head, *samples[family]))


def _labelled(sample: str, label: str) -> str:
    end = sample.index(" ")
    brace = sample.find("{", 0, end)
    if brace < 0:
        return f"{sample[:end]}{{{label}}}{sample[end:]}"
    comma = "" if sample[brace + 1] == "}" else ","
    return f"{sample[: brace + 1]}{label}{comma}{sample[brace + 1 :]}"
