from typing import Any

from django.db import migrations, models


def choose_for_operators(apps: Any, _: Any) -> None:
    """Let all operators hear of failing checks, unless they untick it."""
    choice, person = apps.get_model('notices', 'Choice'), apps.get_model('accounts', 'Person')
    rows = [
        choice(person=operator, event='trouble', way=way)
        for operator in person.objects.filter(is_superuser=True)
        for way in ('browser', 'email', 'webhook')
    ]
    choice.objects.bulk_create(rows, ignore_conflicts=True)


EVENTS = [('needed', 'A run you are in needs volunteers'), ('finished', 'A run you are in is finished'), ('stopped', 'Your machine stopped'), ('request', 'Someone asks to join a run you manage'), ('accepted', 'Your request to join a run is accepted'), ('declined', 'Your request to join a run is declined'), ('trouble', 'A check of this site fails, or passes again'), ('test', 'A test'), ('confirm', 'Whether an address is theirs'), ('off', 'Their webhook was switched off')]


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0001_initial'),
        ('notices', '0001_initial'),
    ]

    operations = [
        migrations.AlterField(
            model_name='choice',
            name='event',
            field=models.CharField(choices=EVENTS, max_length=8),
        ),
        migrations.AlterField(
            model_name='notice',
            name='event',
            field=models.CharField(choices=EVENTS, max_length=8),
        ),
        migrations.CreateModel(
            name='Trouble',
            fields=[
                ('check_name', models.CharField(max_length=20, primary_key=True, serialize=False)),
                ('since', models.DateTimeField(null=True)),
                ('is_told', models.BooleanField(default=False)),
                ('told_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.RunPython(choose_for_operators, migrations.RunPython.noop),
    ]
