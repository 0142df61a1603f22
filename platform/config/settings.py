"""All of the site's settings. The environment sets those that differ between sites (docs/reference/settings.md)."""

from pathlib import Path

from django.utils.functional import lazy

from config import environment, logs
from config.environment import kept_secret, login_providers, public_settings

ROOT = Path(__file__).resolve().parents[2]

# Settings from the environment
DATA = environment.folder("MANYHANDS_DATA", ROOT / "var" / "data")  # database, storage, keys
RELAY_FOLDERS = environment.folders("MANYHANDS_RELAY_FOLDERS")  # home folders of other relays, read by the site
PUBLIC_URL = environment.address("MANYHANDS_PUBLIC_URL", "http://127.0.0.1:8000")  # the address that browsers use
UPLOAD_LIMIT_MB = environment.number("MANYHANDS_UPLOAD_LIMIT_MB", 512, least=1, most=1_000_000)
# The default is enough for a school whose computers share one address.
PEOPLE_PER_ADDRESS = environment.number("MANYHANDS_PEOPLE_PER_ADDRESS", 300, least=1, most=1_000_000)
SIGN_UP_BITS = environment.number("MANYHANDS_SIGN_UP_BITS", 0, least=0, most=28)  # proof of work; 0: none
TRUSTED_PROXIES = environment.networks("MANYHANDS_TRUSTED_PROXIES")  # in addition to those on this machine
HUB_ENDPOINT = environment.address("MANYHANDS_HUB_ENDPOINT", "https://huggingface.co")
HUB_LIMIT_MB = environment.number("MANYHANDS_HUB_LIMIT_MB", 4_096, least=1, most=1_000_000)
# Django's EMAIL_… settings, for sending e-mail
MAIL_FROM = environment.text("MANYHANDS_MAIL_FROM")
MAIL_SERVER = environment.mail_server("MANYHANDS_SMTP_URL", sender=MAIL_FROM)
SENDS_MAIL = bool(MAIL_SERVER)  # if False, the pages do not offer e-mail
globals().update(MAIL_SERVER)
# The largest model, in parameters, that visitors may try on its run's page (runs.releases.trials). 0 means none.
TRY_PARAMETERS = environment.number("MANYHANDS_TRY_PARAMETERS", 200_000_000, least=0, most=2**31)
ARCHIVE_BYTES = 10**9 * environment.number("MANYHANDS_ARCHIVE_GB", 100, least=0, most=10**9)  # per run's log
S3 = environment.bucket("MANYHANDS_S3")  # where files are kept; if empty, in the data folder alone
CACHE_BYTES = 10**9 * environment.number("MANYHANDS_CACHE_GB", 50, least=1, most=10**9)  # copies of files in the bucket
CHILD_MEMORY_MB = environment.number("MANYHANDS_CHILD_MEMORY_MB", 0, least=0, most=100_000_000)  # 0: see runs.processes
REDIS_URL = environment.broker("REDIS_URL")  # if empty, a single process keeps channel layer and task queue in memory
DATABASES = {"default": environment.database("DATABASE_URL", DATA)}
DOWNLOADS = environment.folder("MANYHANDS_DOWNLOADS", ROOT / "var" / "download")  # holds the wheel built by setup
DEBUG = environment.flag("MANYHANDS_DEBUG")
METRICS_TOKEN = environment.text("MANYHANDS_METRICS_TOKEN")  # see config.metrics
METRICS_ADDRESS = environment.listening("MANYHANDS_METRICS_ADDRESS")  # for the worker's own server
# Evaluated lazily, so that a lint or type check leaves no key file behind.
SECRET_KEY = lazy(
    lambda: environment.text("MANYHANDS_SECRET_KEY") or kept_secret(DATA / "keys" / "django").hex(), str
)()

# Hosts, origins, secure cookies
globals().update(public_settings(PUBLIC_URL))

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",  # needed by the admin pages
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "allauth",  # logins through other sites; only its redirect and callback are mounted
    "allauth.account",  # unused here, but required by allauth
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "allauth.socialaccount.providers.openid_connect",
    "jobs",
    "accounts",
    "notices",
    "runs",
    "coordination",
    "web",
    "server",
    "demo",
    "web.admin_site.OperatingConfig",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "web.http.middleware.compressed",
    "web.http.middleware.content_security_policy",
    "django.middleware.locale.LocaleMiddleware",  # ahead of anything that may fail, so that error pages are translated
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "web.pages.accounts.external_login.providers_shown",
                "web.pages.site.about.preferences",
            ],
        },
    },
]
ROOT_URLCONF = "server.urls"
ASGI_APPLICATION = "server.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
FORM_RENDERER = "django.forms.renderers.DjangoTemplates"

# People
AUTH_USER_MODEL = "accounts.Person"
LOGIN_URL = "web:login"
LOGIN_REDIRECT_URL = "web:runs"
LOGOUT_REDIRECT_URL = "web:runs"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
SOCIALACCOUNT_PROVIDERS = login_providers()
SOCIALACCOUNT_ADAPTER = "web.pages.accounts.external_login.OutsideAdapter"
SOCIALACCOUNT_STORE_TOKENS = False  # allauth would store them unencrypted
SOCIALACCOUNT_LOGIN_ON_GET = True  # form-action 'self' stops a form's redirect to another site
SOCIALACCOUNT_ONLY = SOCIALACCOUNT_EMAIL_REQUIRED = SOCIALACCOUNT_QUERY_EMAIL = False
ACCOUNT_EMAIL_VERIFICATION = "none"  # the site stores no e-mail address for logins
ACCOUNT_USER_MODEL_EMAIL_FIELD = None
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
PASSWORD_RESET_TIMEOUT = 86_400  # lifetime of an operator's link for a new password, in seconds

# Cookies and headers; for the content security policy, see web.http.middleware
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "web.http.error_responses.csrf_failure"

# Django writes uploads to disk and keeps only short request bodies in memory.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_000_000
FILE_UPLOAD_MAX_MEMORY_SIZE = 1_000_000

# Language and time
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("bn", "বাংলা")]
if DEBUG:  # scripts/messages.py's pseudo-languages, in which unmarked text stands out
    LANGUAGES += [("en-xa", "⟦Ãççéñţš⟧"), ("ar-xb", "⟦ţfél oţ ţhgîR⟧")]
LOCALE_PATHS = [ROOT / "platform" / "web" / "locale"]
FORMAT_MODULE_PATH = ["web.formats"]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

# Static files
STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "frontend" / "static"]
WHITENOISE_USE_FINDERS = True  # so that nobody needs to collect static files before `serve`
WHITENOISE_IMMUTABLE_FILE_TEST = r"^.*/built/assets/[^/]+-[\w-]{8}\.(js|css)$"  # their names depend on their content
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}

# Rate limits, as (uses, seconds). The site answers any further use within these seconds with E223
# (web.http.rate_limits). Requests without a login count per address. Many people may share an address, and a whole
# class may sign up within minutes. A user code has 34 bits, so ten guesses in 15 minutes are harmless.
RATES = {
    "sign-ups": (PEOPLE_PER_ADDRESS, 3600),  # per address
    "log-ins of this name": (10, 900),  # failed ones, per address and name
    "log-ins": (PEOPLE_PER_ADDRESS, 900),  # failed ones, per address
    "requests of machines": (PEOPLE_PER_ADDRESS, 900),  # per address
    "polls": (30, 15),  # per device code; agents poll every two seconds
    "wrong codes": (10, 900),  # user codes, per person
    "uploads": (30, 3600),  # per person
    "uploads in pieces": (60, 3600),  # per person; counted when an upload is announced
    "requests to join": (30, 3600),  # per person, including any later withdrawn
    "wrong invitations": (30, 900),  # per person
    "wrong invitations of one address": (PEOPLE_PER_ADDRESS, 900),  # for visitors without a login
    "log-ins by another site": (2 * PEOPLE_PER_ADDRESS, 900),  # per address; leaving and returning count separately
    "looks at a run": (50 * PEOPLE_PER_ADDRESS, 60),  # per address; a page without a WebSocket polls every 1.2 seconds
    "looks of one person": (600, 60),  # per person, who may have a dozen pages open
    "teams": (10, 86_400),  # per person who creates them
    "e-mail addresses": (5, 86_400),  # per person; the site sends an e-mail to each address
    "e-mails to one address": (3, 86_400),  # confirmation requests, whoever sends them
    "webhooks": (20, 86_400),  # per person; counted when saved
    "tests of notifications": (10, 3600),  # per person
    "exports": (10, 3600),  # per person; an export is everything that the site stores about someone
    "texts to write": (30, 600),  # per person, when trying released models
    "texts to write for one address": (30, 600),  # per address, for visitors without a login
    "credentials": (60, 900),  # per machine; one is needed every half hour and at each start
}
# Limits per person (runs.quotas). Operators are exempt.
QUOTAS = {
    "drafts": environment.number("MANYHANDS_QUOTA_DRAFTS", 20, least=1, most=1_000_000),
    "disk_mb": environment.number("MANYHANDS_QUOTA_DISK_MB", 5_000, least=1, most=1_000_000_000),
    "parameters": environment.number("MANYHANDS_QUOTA_PARAMETERS", 500_000_000, least=1, most=2**31),
    "runs": environment.number("MANYHANDS_QUOTA_RUNS", 10, least=1, most=1_000_000),
}
# While Redis is down, the cache "here" counts the uses of this process alone.
IN_MEMORY = "django.core.cache.backends.locmem.LocMemCache"
CACHES = {
    "default": {"BACKEND": "coordination.channel_layer.cache.SafeRedisCache", "LOCATION": REDIS_URL}
    if REDIS_URL
    else {"BACKEND": IN_MEMORY, "OPTIONS": {"MAX_ENTRIES": 100_000}},
    "here": {"BACKEND": IN_MEMORY, "LOCATION": "here", "OPTIONS": {"MAX_ENTRIES": 100_000}},
}

# Messages between WebSockets and hosts. The two classes state their own queue limits. While Redis is down, messages
# between processes go through PostgreSQL.
CHANNEL_LAYERS = {
    "default": {"BACKEND": "coordination.channel_layer.redis.RedisLayer", "CONFIG": {"hosts": [REDIS_URL]}}
    if REDIS_URL
    else {"BACKEND": "coordination.channel_layer.process.ProcessLayer", "CONFIG": {}}
}

# Wake-ups for the worker (jobs.queue). Without Redis there are none, since the worker runs in the same process.
CELERY_BROKER_URL = REDIS_URL or "memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_connect_timeout": 1.0, "socket_timeout": 1.0} if REDIS_URL else {}  # seconds
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 0}  # so no request waits for Redis any longer than this
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": logs.formatter(environment.choice("MANYHANDS_LOG", ("text", "json")))},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "celery": {"level": "WARNING"},
        # At lower levels, uvicorn logs malformed requests, which would let a stranger fill the disk.
        "uvicorn": {"level": "ERROR"},
        "django.request": {"level": "ERROR"},
        "django.security": {"level": "CRITICAL"},  # lower levels would let a stranger fill the disk
    },
}
