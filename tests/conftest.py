"""The oracle computes on one thread: on several, torch's first operation in a process is wrong now and then.

Seen with torch 2.13.0: in 2 of 951 fresh processes the first forward of a tiny Llama differed from the second
by 0.0129 in the rows that its second thread computed; on one thread it never did (1,580 processes).
"""

from __future__ import annotations

import torch

torch.set_num_threads(1)
