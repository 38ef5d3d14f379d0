// The entry: chooses the theme before anything is drawn, then shows the page.
import { mount } from "svelte";
import App from "./App.svelte";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import { applyTheme } from "./theme.svelte.ts";

applyTheme();
const target = document.getElementById("page");
if (target) mount(App, { target });
