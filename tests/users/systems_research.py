"""Systems research: fleets, deadlines, losses; FedBuff and FedAsync against FedAvg at the same virtual time."""

import json
import sys
from pathlib import Path

import motley

FLEET = "uniform_spread(ratio=6)+bandwidth(up=1e5, down=1e6, spread=6)"
SMALL = {"clients": 12, "cohort": 4, "model": "mlp(hidden=[16])", "fleet": FLEET}


def same_moment() -> None:
    """Until the same virtual second asynchronous methods merge more often than synchronous rounds."""
    whole = motley.run("digits", rounds=6, method="fedavg", **SMALL).summary["virtual_time"]
    methods = ("fedavg", "fedbuff(buffer=2, concurrency=4)", "fedasync(concurrency=4)")
    ended = {m: motley.run("digits", rounds=500, until=whole, evaluate_every=20, method=m, **SMALL) for m in methods}
    for name, result in ended.items():
        s = result.summary
        print(f"{name:40} {s['rounds']:3} rounds, {s['virtual_time']:.3f} s, accuracy {result.accuracy:.2f}")
        assert s["ended"] == "until" and s["virtual_time"] <= whole and result.accuracy > 0.2
    rounds = [r.summary["rounds"] for r in ended.values()]
    assert rounds[0] < rounds[1] < rounds[2]
    assert "staleness" in ended[methods[1]].summary and "staleness" not in ended["fedavg"].summary


def deadline_and_loss() -> None:
    """A deadline makes some late, a loss loses some; both are counted, and time is kept."""
    free = motley.run("digits", rounds=5, method="fedavg", **SMALL)
    longest = max(b.virtual_time - a.virtual_time for a, b in zip(free.records, free.records[1:], strict=False))
    tight = motley.run("digits", rounds=5, method="fedavg", deadline=longest * 0.6, **SMALL)
    assert tight.summary["late"] > 0 and tight.summary["virtual_time"] < free.summary["virtual_time"]
    lossy = {**SMALL, "fleet": FLEET + "+loss(probability=0.4)"}
    lost = motley.run("digits", rounds=5, method="fedavg", **lossy)
    assert lost.summary["lost"] == sum(r.lost for r in lost.records) > 0
    again = motley.run("digits", rounds=5, method="fedprox(mu=0.1)", **lossy)
    assert [r.lost for r in again.records] == [r.lost for r in lost.records]  # methods meet the same world


def events(folder: Path) -> None:
    """The event log accounts for every task."""
    fleet = FLEET + "+loss(probability=0.2)"
    settings = {**SMALL, "fleet": fleet, "method": "fedasync(concurrency=4)"}
    result = motley.run("digits", rounds=8, events=True, folder=folder / "told", **settings)
    lines = [json.loads(line) for line in (folder / "told" / "events.jsonl").read_text().splitlines()]
    what = [line["what"] for line in lines]
    assert what.count("aggregate") == result.summary["rounds"] == 8
    assert what.count("lose") == result.summary["lost"]
    sent = sum(line.get("bytes_up", 0) for line in lines if line["what"] == "arrive")
    assert sent <= result.summary["bytes_up"]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    again = motley.resume(folder / "told", rounds=12)
    fresh = motley.run("digits", rounds=12, **settings)
    assert again.summary["model_sha256"] == fresh.summary["model_sha256"]


def nobody_arrives() -> None:
    """Where nothing ever arrives the run is no success."""
    for key, value in (("fleet", "loss(probability=1.0)"), ("deadline", 1e-9)):
        try:
            motley.run("digits", rounds=12, method="fedavg", **{**SMALL, key: value})
        except motley.MotleyError as error:
            print(error)
            assert "\n" not in str(error)
        else:
            raise AssertionError(f"{key}={value} ended as if something had been trained")


if __name__ == "__main__":
    same_moment()
    deadline_and_loss()
    events(Path(sys.argv[1]))
    nobody_arrives()
