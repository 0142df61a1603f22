import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "/static/built/",
  build: {
    outDir: "../platform/web/static/built",
    emptyOutDir: true,
    manifest: "manifest.json",
    target: ["chrome107", "edge107", "firefox104", "safari16"],
    modulePreload: { polyfill: false },
    rolldownOptions: { input: ["src/run.ts", "src/upload.ts", "src/estimate.ts", "src/page.ts", "src/notices/notices.ts", "src/forms/trial.ts", "src/forms/signup.ts", "static/manyhands.css"] },
  },
  test: { include: ["tests/**/*.test.ts"] },
});
