# A Hugging Face Space: push this file as Dockerfile to a Space of the kind Docker, with persistent storage. It uses the
# image of docker/site.Dockerfile, which you have pushed to a registry. A Space runs as user 1000, keeps /data, and
# shows port 7860. SPACE_HOST is the address that it gets.
ARG IMAGE=registry.example.org/manyhands/site:latest
FROM ${IMAGE}
USER 1000:1000
# Requests come from the Space's proxy, which names the visitor.
ENV HOME=/data MANYHANDS_TRUSTED_PROXIES=10.0.0.0/8
EXPOSE 7860
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["mkdir -p /data/tmp && exec python manage.py serve --host 0.0.0.0 --port 7860 --public-url https://$SPACE_HOST"]
