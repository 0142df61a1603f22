from typing import Any

from django.db import migrations
from django.utils import timezone


def request_unfinished(apps: Any, _: Any) -> None:
    """Make jobs for unfinished work, which was queued at Celery until now."""
    models = {name: apps.get_model('runs', name) for name in ('Dataset', 'Run', 'Release', 'Publication')}
    unprepared = models['Dataset'].objects.filter(state__in=('uploaded', 'preparing'), runs__isnull=False).distinct()
    unmade = models['Release'].objects.exclude(state='ready')
    unsent = models['Publication'].objects.filter(state__in=('waiting', 'sending'))
    wanted = [
        *(('prepare dataset', pk) for pk in unprepared.values_list('pk', flat=True)),
        *(('prepare run', pk) for pk in models['Run'].objects.filter(state='preparing').values_list('pk', flat=True)),
        *(('verify snapshots', pk) for pk in models['Run'].objects.values_list('pk', flat=True)),
        *(('make release', pk) for pk in unmade.values_list('run', flat=True)),
        *(('publish release', pk) for pk in unsent.values_list('run', flat=True)),
        *(('publish checkpoint', pk) for pk in unsent.values_list('run', flat=True)),
    ]
    job = apps.get_model('jobs', 'Job')
    rows = [job(kind=kind, key=pk.hex, due=timezone.now()) for kind, pk in wanted]
    if apps.get_model('notices', 'Notice').objects.filter(state='waiting').exclude(way='browser').exists():
        rows.append(job(kind='deliver notices', due=timezone.now()))
    job.objects.bulk_create(rows, ignore_conflicts=True)


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0004_names_on_timelines'),
        ('jobs', '0001_initial'),
        ('notices', '0001_initial'),
    ]

    operations = [
        migrations.RunPython(request_unfinished, migrations.RunPython.noop),
        migrations.RemoveField(
            model_name='publication',
            name='checkpoint_retry_at',
        ),
        migrations.RemoveField(
            model_name='verification',
            name='failures',
        ),
        migrations.RemoveField(
            model_name='verification',
            name='retry_at',
        ),
        migrations.RemoveField(
            model_name='verification',
            name='touched_at',
        ),
    ]
