"""A release may be of another snapshot than the newest, of which all that are there already are."""

from typing import Any

from django.db import migrations, models


def fill(apps: Any, _: Any) -> None:
    """Say of every release that is there of which snapshot it is."""
    snapshots = apps.get_model("runs", "Snapshot").objects.order_by("-index")
    for release in apps.get_model("runs", "Release").objects.filter(state="ready", index=None):
        newest = snapshots.filter(run=release.run_id).first()
        if newest is not None:
            release.index, release.step = newest.index, newest.step
            release.save(update_fields=["index", "step"])


class Migration(migrations.Migration):
    dependencies = [("runs", "0018_hub_sources")]

    operations = [
        migrations.AddField("release", "wanted_index", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("release", "index", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("release", "step", models.BigIntegerField(blank=True, null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
