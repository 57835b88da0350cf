//! The BERT encoder of all-MiniLM-L6-v2, with attention heads and feed-forward columns sharded.
//!
//! Embeddings, layer norms and pooling are computed by every rank; they are cheap and need no
//! communication. Each layer reduces twice: after attention's output projection and after the
//! second feed-forward matmul.

use candle_core::{D, Result, Tensor};
use candle_nn::{Embedding, LayerNorm, Linear, Module, VarBuilder, embedding, layer_norm, ops};
use serde::Deserialize;

use crate::shard::{RowParallel, Shard, column_parallel};

/// What `config.json` says of the shape.
#[derive(Deserialize)]
pub struct Config {
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_hidden_layers: usize,
    pub vocab_size: usize,
    pub max_position_embeddings: usize,
    pub type_vocab_size: usize,
    pub layer_norm_eps: f64,
}

/// Token ids, `[sentences, tokens]` in u32, and which of them are no padding, in f32.
pub struct Batch {
    pub ids: Tensor,
    pub mask: Tensor,
}

/// From tokens to vectors. Replicated.
pub struct Embeddings {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
}

impl Embeddings {
    pub fn load(config: &Config, weights: VarBuilder) -> Result<Self> {
        let table = |rows, name| embedding(rows, config.hidden_size, weights.pp(name));
        Ok(Embeddings {
            words: table(config.vocab_size, "word_embeddings")?,
            positions: table(config.max_position_embeddings, "position_embeddings")?,
            types: table(config.type_vocab_size, "token_type_embeddings")?,
            norm: norm(config, &weights)?,
        })
    }

    /// `[sentences, tokens, hidden]`.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let tokens = ids.dim(1)? as u32;
        let positions = self.positions.forward(&Tensor::arange(0, tokens, ids.device())?)?;
        let types = self.types.forward(&ids.zeros_like()?)?;
        let sum = (self.words.forward(ids)? + types)?.broadcast_add(&positions)?;
        self.norm.forward(&sum)
    }
}

/// The layers, sharded.
pub struct Encoder<'a> {
    layers: Vec<Layer<'a>>,
}

impl<'a> Encoder<'a> {
    pub fn load(config: &Config, weights: VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let layer = |i| Layer::load(config, weights.pp("layer").pp(i), shard);
        let layers = (0..config.num_hidden_layers).map(layer).collect::<anyhow::Result<_>>()?;
        Ok(Encoder { layers })
    }

    /// One vector of unit length a sentence, `[sentences, hidden]`: the mean over its tokens.
    pub fn embed(&self, embeddings: &Tensor, mask: &Tensor) -> Result<Tensor> {
        // Added to attention scores before the softmax: nothing for a token, far below any score
        // for padding.
        let bias = mask.affine(1e9, -1e9)?.unsqueeze(1)?.unsqueeze(1)?;
        let hidden =
            self.layers.iter().try_fold(embeddings.clone(), |x, layer| layer.forward(&x, &bias))?;

        let mask = mask.unsqueeze(2)?;
        let mean = hidden.broadcast_mul(&mask)?.sum(1)?.broadcast_div(&mask.sum(1)?)?;
        mean.broadcast_div(&mean.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
    }
}

struct Layer<'a> {
    attention: Attention<'a>,
    attention_norm: LayerNorm,
    feed_forward: FeedForward<'a>,
    feed_forward_norm: LayerNorm,
}

impl<'a> Layer<'a> {
    fn load(config: &Config, weights: VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        Ok(Layer {
            attention: Attention::load(config, weights.pp("attention"), shard)?,
            attention_norm: norm(config, &weights.pp("attention.output"))?,
            feed_forward: FeedForward::load(config, &weights, shard)?,
            feed_forward_norm: norm(config, &weights.pp("output"))?,
        })
    }

    fn forward(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let x = self.attention_norm.forward(&(x + self.attention.forward(x, bias)?)?)?;
        self.feed_forward_norm.forward(&(&x + self.feed_forward.forward(&x)?)?)
    }
}

/// Some heads of multi-head attention, and the projection that sums over all of them.
struct Attention<'a> {
    heads: usize,
    head_size: usize,
    query: Linear,
    key: Linear,
    value: Linear,
    output: RowParallel<'a>,
}

impl<'a> Attention<'a> {
    fn load(config: &Config, weights: VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let hidden = config.hidden_size;
        let head_size = hidden / config.num_attention_heads;
        let heads = shard.range(config.num_attention_heads, "attention heads")?;
        let columns = heads.start * head_size..heads.end * head_size;
        let projection =
            |name| column_parallel((hidden, hidden), &columns, weights.pp("self").pp(name));
        Ok(Attention {
            heads: heads.len(),
            head_size,
            query: projection("query")?,
            key: projection("key")?,
            value: projection("value")?,
            output: RowParallel::load(
                (hidden, hidden),
                &columns,
                weights.pp("output.dense"),
                shard,
            )?,
        })
    }

    fn forward(&self, x: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let (sentences, tokens, _) = x.dims3()?;
        // [sentences, heads, tokens, head_size]
        let split = |projection: &Linear| {
            projection
                .forward(x)?
                .reshape((sentences, tokens, self.heads, self.head_size))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = (split(&self.query)? / (self.head_size as f64).sqrt())?;
        let scores = query.matmul(&split(&self.key)?.t()?)?.broadcast_add(bias)?;
        let context = ops::softmax_last_dim(&scores)?.matmul(&split(&self.value)?)?;
        self.output.forward(&context.transpose(1, 2)?.flatten_from(2)?)
    }
}

/// Two matmuls with an activation between.
struct FeedForward<'a> {
    up: Linear,
    down: RowParallel<'a>,
}

impl<'a> FeedForward<'a> {
    fn load(config: &Config, weights: &VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let columns = shard.range(inner, "feed-forward columns")?;
        let up = column_parallel((hidden, inner), &columns, weights.pp("intermediate.dense"))?;
        let down = RowParallel::load((inner, hidden), &columns, weights.pp("output.dense"), shard)?;
        Ok(FeedForward { up, down })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu_erf()?)
    }
}

fn norm(config: &Config, weights: &VarBuilder) -> Result<LayerNorm> {
    layer_norm(config.hidden_size, config.layer_norm_eps, weights.pp("LayerNorm"))
}
