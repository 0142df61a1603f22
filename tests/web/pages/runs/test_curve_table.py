"""The loss curve as a table."""

import csv
import io

from django.test import Client

from runs.models import LogEntry, Run
from tests.runs.factories import Owned, committed


def test_every_point_and_every_held_out_loss_has_a_row(client: Client, run: Run, laptop: Owned) -> None:
    for loss in (7.0, 6.5, 6.25):
        committed(run, (laptop.machine, 4), loss=loss)
    run.log.update(learning_rate=3e-4)
    run.snapshots.update(step=2, heldout_loss=6.6)
    page = client.get("/runs/proverbs/").content.decode()
    assert 'href="/runs/proverbs/curve.csv" download' in page
    answer = client.get("/runs/proverbs/curve.csv")
    assert answer["Content-Disposition"] == 'attachment; filename="proverbs-loss.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
    assert [(row["step"], row["loss"], row["heldout_loss"]) for row in rows] == [
        ("1", "7.00000", ""),
        ("2", "6.50000", ""),
        ("2", "", "6.60000"),
        ("3", "6.25000", ""),
    ]
    names = ("samples_per_s", "machines", "learning_rate", "bytes_averaged")
    assert [rows[0][name] for name in names] == ["2.667", "1", "0.0003", ""], "4 samples in 1.5 seconds"
    assert [rows[2][name] for name in names] == ["", "", "", ""]
    assert rows[0]["at"] == LogEntry.objects.get(index=1).at.isoformat(timespec="seconds")


def test_before_the_first_step_there_are_only_names_of_columns(client: Client, run: Run) -> None:
    assert client.get("/runs/proverbs/curve.csv").content == (
        b"step,loss,heldout_loss,at,samples_per_s,machines,learning_rate,bytes_averaged\n"
    )
