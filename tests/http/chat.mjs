// A client of the AI SDK, without a page: AbstractChat is what useChat is made of.
// node chat.mjs ADDRESS: reads one JSON command a line, writes one JSON answer a line.
import readline from "node:readline";
import { AbstractChat, DefaultChatTransport } from "ai";

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (index, message) => {
    this.messages = this.messages.map((each, at) => (at === index ? structuredClone(message) : each));
  };
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {
  constructor(options) { super({ ...options, state: new State() }); }
}

const transport = new DefaultChatTransport({ api: process.argv[2] });
let chat, pending;
const commands = {
  open: ({ id, messages = [] }) => { chat = new Chat({ id, transport }); chat.messages = messages; },
  send: ({ text, id }) => { pending = chat.sendMessage({ text, messageId: id }); },
  regenerate: () => { pending = chat.regenerate(); },
  resume: () => { pending = chat.resumeStream(); },
  stop: async () => { await chat.stop(); },
  settle: async () => { await pending; },
  // Until the last message has a text, which the open response said: not one that broke before.
  until: async ({ text }) => {
    const said = () => chat.status === "streaming" && JSON.stringify(chat.lastMessage ?? "").includes(text);
    while (!said()) await new Promise((go) => setTimeout(go, 5));
  },
};
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { do: name, ...given } = JSON.parse(line);
  await commands[name](given);
  const { status, error, messages } = chat;
  console.log(JSON.stringify({ status, error: error && String(error), messages }));
}
