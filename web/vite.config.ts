// Builds web/dist, which the binary embeds: index.html, one script, one style sheet, named by their content so that
// browsers may keep them for ever.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  plugins: [svelte()],
  build: {
    target: "es2022",
    // A data: address would need an exception in the Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  // `npx vite` in this folder reloads while you edit, against a master on its usual port.
  server: { proxy: { "/api": { target: "http://127.0.0.1:8080", headers: { origin: "http://127.0.0.1:8080" } } } },
});
