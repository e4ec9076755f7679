// The turns of a chat so far. The last question and answer are kept only when the answer was not broken off.

export class Conversation {
  constructor(list, button) {
    this.list = list;
    this.button = button;
    this.turns = [];
    this.pending = null;
    button.addEventListener("click", () => this.forget());
  }

  /** The turns before the next message: the answer that is on the page goes among them. */
  next() {
    if (this.pending) this.turns.push(...this.pending);
    this.pending = null;
    this.#draw();
    return [...this.turns];
  }

  /** Keeps a question with its answer, to be shown when the next one is asked. */
  keep(question, answer) {
    this.pending = [
      { role: "user", content: question },
      { role: "assistant", content: answer },
    ];
    this.button.disabled = false;
  }

  forget() {
    this.turns = [];
    this.pending = null;
    this.#draw();
  }

  #draw() {
    this.list.replaceChildren(...this.turns.map(itemOf));
    this.list.hidden = !this.turns.length;
    this.button.disabled = !this.turns.length;
  }
}

function itemOf({ role, content }) {
  const item = document.createElement("li");
  const speaker = document.createElement("b");
  item.className = role;
  speaker.textContent = role === "user" ? "You" : "Model";
  item.append(speaker, content);
  return item;
}
