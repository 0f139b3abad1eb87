// Asks as a page would. Arguments: the folder of the modules of docs/clients.md, how ("stream", "watch", "leave", "speak",
// "twice", "wrong"), gateways' addresses. Prints what was heard as one line of JSON.

const [folder, how, ...urls] = process.argv.slice(2);
const { stream } = await import(`${folder}/cornstalk.mjs`);
const { speak } = await import(`${folder}/speak.mjs`);
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

const heard = { text: "", pieces: 0, bytes: 0 };

function hear(field, data) {
  heard.pieces++;
  if (field === "text") heard.text += data;
  else heard.bytes += data.length;
}

if (how === "stream") {
  const answer = stream(urls, "spoken_answer", { text: "hello" }, { deadline: 30 });
  for (;;) {
    const { done, value } = await answer.next();
    if (done) {
      heard.response = value;
      break;
    }
    hear(value.field, value.data);
  }
}

if (how === "leave") {
  for await (const { field, data } of stream(urls, "spoken_answer", { text: "Answer slowly." })) {
    hear(field, data);
    break;
  }
}

if (how === "watch") {
  const first = await fetch(`${urls[1]}/apps/spoken_answer`, {
    method: "POST",
    headers: { Accept: "text/event-stream", "Content-Type": "application/json", "Cornstalk-Resume-Grace": "60" },
    body: JSON.stringify({ text: "hello", speak: false }),
  });
  const request = first.headers.get("Cornstalk-Request");
  await first.body.cancel();
  const alive = setInterval(() => {}, 1000); // EventSource does not keep the process while it waits to connect again
  const source = new EventSource(`${urls[0]}/requests/${request}/events`);
  source.addEventListener("chunk", (event) => hear("text", JSON.parse(event.data).data));
  heard.response = await new Promise((resolve, reject) => {
    source.addEventListener("end", (event) => resolve(JSON.parse(event.data).response));
    source.addEventListener("error", (event) => event.data && reject(new Error(event.data)));
  });
  source.close();
  clearInterval(alive);
}

if (how === "speak") {
  heard.said = "";
  heard.saidSound = "";
  heard.sound = "";
  async function* words() {
    for (let i = 0; i < 100; i++) {
      await sleep(3);
      const piece = `w${i} é \u{1f33d} `;
      heard.said += piece;
      yield piece;
    }
  }
  async function* microphone() {
    for (let i = 0; i < 60; i++) {
      await sleep(5);
      const piece = Buffer.alloc(480, i);
      heard.saidSound += piece.toString("hex");
      yield new Uint8Array(piece);
    }
  }
  const answer = speak(urls, "echo", { title: "cut" }, { text: words(), sound: microphone() }, { deadline: 30 });
  for (;;) {
    const { done, value } = await answer.next();
    if (done) {
      heard.response = value;
      break;
    }
    if (value.field === "text") heard.text += value.data;
    if (value.field === "sound") heard.sound += Buffer.from(value.data).toString("hex");
  }
}

if (how === "twice") {
  for (const [name, ask] of Object.entries({ stream, speak })) {
    heard[name] = {};
    for await (const { field, data } of ask(urls, "twice", { text: "t" }, {})) {
      heard[name][field] = (heard[name][field] ?? "") + data;
    }
  }
}

if (how === "wrong") {
  async function* broken() {
    yield "some";
    throw new Error("the microphone is gone");
  }
  async function error(app, input, live) {
    try {
      for await (const piece of speak(urls, app, input, live)) void piece;
    } catch (error) {
      return error;
    }
  }
  heard.field = (await error("echo", { text: "x" }, {})).error.field;
  heard.closed = (await error("nobody", {}, {})).message;
  heard.broken = (await error("echo", { title: "x" }, { text: broken() })).message;
}

console.log(JSON.stringify(heard));
