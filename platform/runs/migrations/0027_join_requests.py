import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (
        ('runs', '0026_trials'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    )

    operations = (
        migrations.AlterField(
            model_name='run',
            name='visibility',
            field=models.CharField(choices=[('public', 'Public'), ('unlisted', 'Unlisted'), ('private', 'by invitation'), ('request', 'by request')], default='public', max_length=8),
        ),
        migrations.CreateModel(
            name='JoinRequest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('message', models.CharField(blank=True, max_length=500)),
                ('asked_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('declined_at', models.DateTimeField(blank=True, null=True)),
                ('person', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='join_requests', to=settings.AUTH_USER_MODEL)),
                ('run', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='join_requests', to='runs.run')),
            ],
            options={
                'ordering': ('asked_at', 'id'),
                'constraints': [models.UniqueConstraint(fields=('run', 'person'), name='one_request_a_person')],
            },
        ),
    )
