// The page's beginning: what the controls do. Everything that happens lies in the other files.

import { listModels } from "./api.js";
import { Conversation } from "./conversation.js";
import { readForm } from "./request.js";
import { Session } from "./session.js";
import { Stage } from "./stage.js";

const PROMPT_NAMES = { chat: "Message", completions: "Prompt" };
const EXAMPLES = {
  chat: "Write a short Python class Point with x and y, and methods add, subtract and multiply.",
  completions: "A short list of the planets, from the sun outwards:\n\n1. Mercury is the smallest planet.\n2. Venus is the hottest planet.\n3.",
};

const form = document.getElementById("request");
const results = document.getElementById("results");
const title = document.getElementById("model");
const { prompt, run, stop, key } = form.elements;
const conversation = new Conversation(document.getElementById("conversation"), document.getElementById("forget"));
const session = new Session(new Stage(document), conversation);

async function start() {
  if (session.isRunning || !form.reportValidity()) return;
  run.disabled = true;
  stop.disabled = false;
  const done = session.start(readForm(form), nameModel);
  if (isNarrow()) results.scrollIntoView({ behavior: "smooth" });
  await done;
  run.disabled = false;
  stop.disabled = true;
}

/** The name of the served model, which is also the page's subtitle. */
async function nameModel() {
  const [name] = await listModels(key.value.trim());
  title.textContent = name;
  return name;
}

function introduce() {
  nameModel().catch((error) => {
    title.textContent = error.status === 401 ? "This server asks for an API key" : error.message;
    if (error.status === 401) key.closest("details").open = true;
  });
}

/** Shows the controls of a route, and its example as long as nothing of one's own was written. */
function chooseRoute() {
  const route = form.elements.route.value;
  for (const element of form.querySelectorAll("[data-route]")) element.hidden = element.dataset.route !== route;
  if (!prompt.value || Object.values(EXAMPLES).includes(prompt.value)) prompt.value = EXAMPLES[route];
  document.getElementById("prompt_name").textContent = PROMPT_NAMES[route];
  results.dataset.route = route;
}

function isNarrow() {
  return window.matchMedia("(max-width: 55rem)").matches;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
form.addEventListener("change", (event) => {
  if (event.target.name === "route") chooseRoute();
  if (event.target === key) introduce();
});
stop.addEventListener("click", () => session.stop());
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    start();
  }
  if (event.key === "Escape") session.stop();
});

for (const group of form.querySelectorAll("details")) group.open = !isNarrow();
chooseRoute();
introduce();
