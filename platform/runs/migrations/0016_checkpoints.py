"""Checkpoints of a run on the Hub, and since when nothing reaches it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0015_heldout_figures")]

    operations = [
        migrations.AddField("publication", "failing_since", models.DateTimeField(blank=True, null=True)),
        migrations.AddField("publication", "checkpoint_every", models.IntegerField(default=0)),
        migrations.AddField("publication", "in_branches", models.BooleanField(default=False)),
        migrations.AddField("publication", "checkpoint_step", models.BigIntegerField(default=0)),
        migrations.AddField("publication", "checkpoint_url", models.CharField(blank=True, max_length=300)),
        migrations.AddField("publication", "checkpoint_fault", models.TextField(blank=True)),
        migrations.AddField("publication", "checkpoint_retry_at", models.DateTimeField(blank=True, null=True)),
    ]
