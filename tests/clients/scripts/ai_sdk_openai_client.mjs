// AI SDK with its default provider, whose models speak /v1/responses; and its embeddings.
import { createOpenAI } from "@ai-sdk/openai";
import {
  cosineSimilarity,
  embed,
  embedMany,
  generateObject,
  generateText,
  stepCountIs,
  streamText,
  tool,
} from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: `${process.env.OCTAVO_URL}/v1`, apiKey: "none" });
const asked = { model: openai("smollm2-135m"), temperature: 0, maxOutputTokens: 200 };
const Person = z.object({ name: z.string().max(20), age: z.number().int().min(0).max(150) });
const { object } = await generateObject({
  ...asked,
  schema: Person,
  prompt: "Anna is 31 years old and lives in Rome.",
});
const tools = {
  get_weather: tool({
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string().max(20) }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};
const question = "What is the weather in Paris?";
const single = { openai: { parallelToolCalls: false } };
// The first step must call; the second, which has the call's result, must not.
const agent = await generateText({
  ...asked,
  tools,
  prompt: question,
  providerOptions: single,
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
});
const plain = { ...asked, prompt: "Name a fruit.", maxOutputTokens: 20 };
const whole = await generateText(plain);
const stream = streamText(plain);
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
const calling = streamText({
  ...asked,
  tools: { get_weather: { ...tools.get_weather, execute: undefined } },
  prompt: question,
  toolChoice: "required",
  providerOptions: single,
});
const next = await generateText({
  ...asked,
  prompt: "Name another one.",
  maxOutputTokens: 20,
  providerOptions: { openai: { previousResponseId: whole.providerMetadata.openai.responseId } },
});
const embedding = openai.embedding("smollm2-135m");
const one = await embed({ model: embedding, value: "A cat sleeps on the sofa." });
const many = await embedMany({
  model: embedding,
  values: ["A cat sleeps on the sofa.", "A kitten naps on the couch."],
});
console.log(
  JSON.stringify({
    person: object,
    calls: agent.steps[0].toolCalls.map((call) => [call.toolName, call.input]),
    results: agent.steps[0].toolResults.map((result) => result.output),
    answered: agent.text !== "",
    text: whole.text,
    streamed,
    finish: [whole.finishReason, await stream.finishReason, await calling.finishReason],
    streamed_calls: (await calling.toolCalls).map((call) => [call.toolName, call.input]),
    tokens: whole.usage.totalTokens,
    cached: next.usage.inputTokenDetails?.cacheReadTokens ?? next.usage.cachedInputTokens,
    warnings: (whole.warnings ?? []).map((warning) => warning.feature ?? warning.setting ?? warning.type),
    sizes: [one.embedding.length, ...many.embeddings.map((vector) => vector.length)],
    same: cosineSimilarity(one.embedding, many.embeddings[0]),
    near: cosineSimilarity(...many.embeddings),
  }),
);
