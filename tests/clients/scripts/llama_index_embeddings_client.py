"""LlamaIndex: its embeddings, alone and in an index that finds a text by them."""

from common import KEY, MODEL, URL, tell
from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

TEXTS = ["A cat sleeps on the sofa.", "Bond yields rose on Tuesday.", "The train to Rome leaves at noon."]
options = {"model_name": MODEL, "api_base": URL, "api_key": KEY}
embedding = OpenAILikeEmbedding(**options)
short = OpenAILikeEmbedding(dimensions=64, **options)
index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS], embed_model=embedding)
found = index.as_retriever(similarity_top_k=1).retrieve(TEXTS[1])
tell(
    sizes=[len(embedding.get_text_embedding(TEXTS[0])), len(short.get_query_embedding(TEXTS[0]))],
    many=embedding.get_text_embedding_batch(TEXTS) == [embedding.get_text_embedding(text) for text in TEXTS],
    found=found[0].text,
    score=found[0].score,
)
