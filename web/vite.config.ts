import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

const packaged = fileURLToPath(new URL("../src/backlight/serve/static", import.meta.url));

export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: {
    outDir: process.env.BACKLIGHT_WEB_OUT ?? packaged,
    emptyOutDir: true,
    target: "es2022",
    // Small files become data: addresses, which the page's content security policy refuses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": "http://127.0.0.1:7420" } },
  test: { include: ["src/**/*.test.ts"] },
});
