//! The encoder with attention heads and feed-forward columns sharded.
//!
//! Embeddings, layer norms and pooling are computed by every rank; they are cheap and need no
//! communication. Each layer reduces twice: after attention's output projection and after the
//! second feed-forward matmul.

use candle_core::{Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use minilm::{Attention, Config, Encoder, columns};

use crate::shard::{RowParallel, Shard};

/// The encoder, of which this rank computes its share.
pub fn sharded<'a>(
    config: &Config,
    weights: &VarBuilder,
    shard: Shard<'a>,
) -> anyhow::Result<Encoder<'a>> {
    Encoder::load(config, weights, |_, weights| {
        let feed_forward = FeedForward::load(config, weights, shard)?;
        Ok((attention(config, weights, shard)?, Box::new(feed_forward)))
    })
}

/// Some heads of multi-head attention, and the projection that sums over all of them.
fn attention<'a>(
    config: &Config,
    weights: &VarBuilder,
    shard: Shard<'a>,
) -> anyhow::Result<Attention<'a>> {
    let (hidden, head_size) = (config.hidden_size, config.head_size());
    let heads = shard.range(config.num_attention_heads, "attention heads")?;
    let rows = heads.start * head_size..heads.end * head_size;
    let weights_out = weights.pp("attention.output.dense");
    let output = RowParallel::load((hidden, hidden), &rows, weights_out, shard)?;
    Ok(Attention::load(config, weights, &heads, Box::new(output))?)
}

/// Two matmuls with an activation between.
struct FeedForward<'a> {
    up: Linear,
    down: RowParallel<'a>,
}

impl<'a> FeedForward<'a> {
    fn load(config: &Config, weights: &VarBuilder, shard: Shard<'a>) -> anyhow::Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let share = shard.range(inner, "feed-forward columns")?;
        let up = columns((hidden, inner), &share, weights.pp("intermediate.dense"))?;
        let down = RowParallel::load((inner, hidden), &share, weights.pp("output.dense"), shard)?;
        Ok(FeedForward { up, down })
    }
}

impl Module for FeedForward<'_> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu_erf()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use candle_core::Device;
    use minilm::tiny::{self, CONFIG};
    use minilm::{Batch, Difference, Embeddings};
    use symmem::launch::threads;
    use symmem::prelude::Group;

    use super::*;
    use crate::shard::AllReduce;

    type Rows = Vec<Vec<f32>>;

    /// Two sentences, one of them padded, by this rank's shard and by the whole model.
    fn embed(group: &Group) -> anyhow::Result<(Rows, Rows)> {
        let ids = Tensor::new(&[[7u32, 49, 0, 3], [1, 30, 0, 0]], &Device::Cpu)?;
        let mask = Tensor::new(&[[1f32, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]], &Device::Cpu)?;
        let embeddings = Embeddings::load(&CONFIG, tiny::weights().pp("embeddings"))?;
        let input = [embeddings.forward(&Batch { ids, mask })?];
        let all_reduce = AllReduce::of(group, input[0].x.elem_count())?;
        let weights = tiny::weights().pp("encoder");
        let embed = |encoder: Encoder| encoder.embed(&input)?.to_vec2();
        Ok((
            embed(sharded(&CONFIG, &weights, Shard::of(&all_reduce))?)?,
            embed(Encoder::whole(&CONFIG, &weights)?)?,
        ))
    }

    #[test]
    fn shards_compute_what_the_whole_computes() {
        for ranks in 1..=CONFIG.num_attention_heads {
            let all = threads(ranks, |group| embed(&group).unwrap()).unwrap();
            for (rank, (sharded, whole)) in all.iter().enumerate() {
                Difference::largest(whole, sharded).unwrap().check().unwrap();
                assert_eq!(sharded, &all[0].0, "rank {rank} of {ranks} has other bits than rank 0");
            }
        }
    }

    #[test]
    fn more_ranks_than_heads_is_an_error_on_every_rank() {
        for ended in threads(6, |group| embed(&group)).unwrap() {
            let error = ended.unwrap_err().to_string();
            assert_eq!(error, "5 attention heads cannot be split over 6 ranks");
        }
    }
}
