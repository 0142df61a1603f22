import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Mailbox',
            fields=[
                ('person', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='mailbox', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('address', models.EmailField(max_length=254)),
                ('saved_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('confirmed_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Webhook',
            fields=[
                ('person', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='webhook', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('sealed_address', models.TextField()),
                ('sealed_secret', models.TextField()),
                ('host', models.CharField(max_length=255)),
                ('service', models.CharField(choices=[('discord', 'Discord'), ('slack', 'Slack'), ('generic', 'JSON')], max_length=8)),
                ('saved_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('tried_at', models.DateTimeField(blank=True, null=True)),
                ('failing_since', models.DateTimeField(blank=True, null=True)),
                ('problem', models.CharField(blank=True, max_length=200)),
                ('off_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='Choice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('event', models.CharField(choices=[('needed', 'A run you are in needs volunteers'), ('finished', 'A run you are in is finished'), ('stopped', 'A machine of yours stopped'), ('test', 'A test'), ('confirm', 'Whether an address is theirs'), ('off', 'Their webhook was switched off')], max_length=8)),
                ('way', models.CharField(choices=[('browser', 'Browser'), ('email', 'E-mail'), ('webhook', 'Webhook')], max_length=8)),
                ('person', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notice_choices', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('person', 'event', 'way'), name='notice_chosen_once')],
            },
        ),
        migrations.CreateModel(
            name='Notice',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('event', models.CharField(choices=[('needed', 'A run you are in needs volunteers'), ('finished', 'A run you are in is finished'), ('stopped', 'A machine of yours stopped'), ('test', 'A test'), ('confirm', 'Whether an address is theirs'), ('off', 'Their webhook was switched off')], max_length=8)),
                ('way', models.CharField(choices=[('browser', 'Browser'), ('email', 'E-mail'), ('webhook', 'Webhook')], max_length=8)),
                ('about', models.CharField(max_length=80)),
                ('day', models.IntegerField()),
                ('title', models.CharField(blank=True, max_length=120)),
                ('machine', models.CharField(blank=True, max_length=60)),
                ('path', models.CharField(max_length=200)),
                ('at', models.DateTimeField(default=django.utils.timezone.now)),
                ('due_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('sent', 'Sent'), ('failed', 'Failed')], default='waiting', max_length=8)),
                ('tries', models.PositiveIntegerField(default=0)),
                ('sent_at', models.DateTimeField(blank=True, null=True)),
                ('problem', models.CharField(blank=True, max_length=200)),
                ('person', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='notices', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'indexes': [models.Index(fields=['state', 'due_at'], name='notice_due'), models.Index(fields=['at'], name='notice_by_age')],
                'constraints': [models.UniqueConstraint(fields=('person', 'event', 'way', 'about', 'day'), name='notice_once_a_day')],
            },
        ),
    ]
