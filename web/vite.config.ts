import { fileURLToPath } from "node:url";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

const packaged = fileURLToPath(new URL("../src/backlight/serve/static", import.meta.url));
const out = process.env.BACKLIGHT_WEB_OUT ?? packaged;

const pageAt = (name: string) => fileURLToPath(new URL(name, import.meta.url));

/** The pages as they are served: in parts, each loaded when it is needed. */
const served = {
  outDir: out,
  emptyOutDir: true,
  // Small files become data: addresses, which the page's content security policy refuses.
  assetsInlineLimit: 0,
  modulePreload: { polyfill: false },
  rolldownOptions: { input: [pageAt("./index.html"), pageAt("./lab.html")] },
};

/** One file of script and one of style: for exported files, and for notebooks. */
const alone = (name: string) => ({
  outDir: `${out}/embedded`,
  emptyOutDir: false,
  cssCodeSplit: false,
  modulePreload: false as const,
  rolldownOptions: {
    input: { [name]: fileURLToPath(new URL(`./src/${name}.ts`, import.meta.url)) },
    // The notebook asks the widget for its default export.
    preserveEntrySignatures: "strict" as const,
    output: {
      format: "es" as const,
      codeSplitting: false,
      entryFileNames: "[name].js",
      assetFileNames: `${name}[extname]`,
    },
  },
});

export default defineConfig(({ mode }) => {
  const isAlone = ["embedded", "labEmbedded", "widget"].includes(mode);
  return {
    base: "./",
    publicDir: isAlone ? false : "public",
    plugins: [svelte()],
    build: { target: "es2022", ...(isAlone ? alone(mode) : served) },
    server: { proxy: { "/api": "http://127.0.0.1:7420" } },
    test: { include: ["src/**/*.test.ts"] },
  };
});
