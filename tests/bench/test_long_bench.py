"""`octavo bench long` over the default model's stand-in is shown in tests/real; here what it prints."""

from __future__ import annotations

from octavo.bench.long import LongRun
from octavo.bench.workloads import LongSequence
from octavo.cli.bench import long_table
from octavo.cli.terminal import print_all


def test_the_table_has_a_column_for_each_way_and_says_the_share_of_the_file(capsys) -> None:  # type: ignore[no-untyped-def]
    hot = LongRun("hot", 900, 0, 1500.0, 100.0, 0)
    cold = LongRun("cold", 100, 300, 1200.0, 40.0, 50_000_000, 4e9, 0.005, 0.012)
    assert cold.share_of_medium == 0.5
    assert hot.share_of_medium is None
    print_all(long_table([hot, cold], LongSequence(8000)))
    said = capsys.readouterr().out
    assert "a prompt of 8,000 tokens" in said
    assert "50%" in said
    assert "12.0" in said
