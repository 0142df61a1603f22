from typing import Any

from django.db import migrations, models
from django.db.models import Max


def begin_at_verified_snapshots(apps: Any, _: Any) -> None:
    """Let the archive begin after the newest verified snapshot, because relays have deleted the averages before it."""
    verified = apps.get_model('runs', 'Snapshot').objects.filter(state='verified')
    for run, index in verified.values_list('run').annotate(Max('index')):
        apps.get_model('runs', 'Head').objects.filter(run=run).update(archived=index)


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0005_jobs'),
    ]

    operations = [
        migrations.AddField(
            model_name='head',
            name='archive_bytes',
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='head',
            name='archived',
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='head',
            name='gap',
            field=models.BigIntegerField(default=0),
        ),
        migrations.AddField(
            model_name='snapshot',
            name='is_bridged',
            field=models.BooleanField(default=False),
        ),
        migrations.RunPython(begin_at_verified_snapshots, migrations.RunPython.noop),
    ]
