"""What a program on LangChain does. Prints one JSON object; usage: langchain_client.py BASE_URL MODEL"""

import asyncio
import json
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

BASE_URL, MODEL = sys.argv[1:]
settings = {"base_url": BASE_URL, "api_key": "none", "model": MODEL, "temperature": 0, "max_retries": 0}
messages = [
    SystemMessage("You are brief."),
    HumanMessage("Say one."),
    AIMessage("One."),
    HumanMessage("Say two and three."),
]
chat = ChatOpenAI(max_completion_tokens=12, seed=3, **settings)
text = OpenAI(max_tokens=12, **settings)

answer = chat.invoke(messages)
chunks = list(chat.stream(messages))
with_logprobs = chat.bind(logprobs=True, top_logprobs=2).invoke(messages)
print(
    json.dumps(
        {
            "chat": answer.content,
            "usage": answer.usage_metadata,
            "finish_reason": answer.response_metadata["finish_reason"],
            "stream": "".join(chunk.content for chunk in chunks),
            "asynchronous": asyncio.run(chat.ainvoke(messages)).content,
            "batch": [each.content for each in chat.batch([messages, messages])],
            "num_logprobs": len(with_logprobs.response_metadata["logprobs"]["content"]),
            "completion": text.invoke("one two three one two three one two"),
            "completion_stream": "".join(text.stream("one two three one two three one two")),
            "stopped": text.invoke("one two three one two three one two", stop=["two"]),
        }
    )
)
