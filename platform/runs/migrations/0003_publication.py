
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0002_members_and_uploads'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='release',
            name='named',
            field=models.JSONField(blank=True, default=list),
        ),
        migrations.CreateModel(
            name='HubAccount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('namespaces', models.JSONField(default=list)),
                ('sealed_token', models.TextField()),
                ('saved_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('person', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='hub_account', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Publication',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('repository', models.CharField(max_length=200)),
                ('private', models.BooleanField(default=False)),
                ('replace', models.BooleanField(default=False)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('sending', 'Sending'), ('published', 'Published'), ('failed', 'Failed')], default='waiting', max_length=10)),
                ('commit', models.CharField(blank=True, max_length=64)),
                ('url', models.CharField(blank=True, max_length=300)),
                ('fault', models.TextField(blank=True)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('published_at', models.DateTimeField(blank=True, null=True)),
                ('run', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='publication', to='runs.run')),
            ],
        ),
        migrations.CreateModel(
            name='NamedHand',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('agreed_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('person', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='named', to='runs.run')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('run', 'person'), name='named_once')],
            },
        ),
    ]
