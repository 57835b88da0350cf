//! The encoder, dense and with experts, over sentences that the ranks share.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use candle_nn::VarBuilder;
use minilm::{Attention, Batch, Config, Embeddings, Encoder, Hidden, share};
use symmem::prelude::{Collectives, Group, ReduceOp};

use crate::layer::{Block, Exchange, Routed};
use crate::statistics::Loads;

/// One vector a sentence.
pub type Rows = Vec<Vec<f32>>;

/// The weights, with each feed-forward block cut into experts.
pub struct Model<'a> {
    group: &'a Group,
    config: &'a Config,
    weights: &'a VarBuilder<'a>,
    experts: usize,
    blocks: Vec<Block>,
}

impl<'a> Model<'a> {
    pub fn load(
        group: &'a Group,
        config: &'a Config,
        weights: &'a VarBuilder<'a>,
        experts: usize,
    ) -> Result<Self> {
        let neurons = config.intermediate_size;
        ensure!(experts <= neurons, "{neurons} neurons are not enough for {experts} experts");
        // As a routing has them.
        let mine = share(experts, group.rank().index(), group.size());
        let block = |i| {
            let weights = weights.pp("layer").pp(i);
            Block::load(config, &weights, experts, mine.clone())
        };
        let blocks = (0..config.num_hidden_layers).map(block).collect::<Result<_, _>>()?;
        Ok(Model { group, config, weights, experts, blocks })
    }
}

impl Model<'_> {
    /// What the dense model makes of the sentences, each a batch.
    pub fn dense(&self, embeddings: &Embeddings, batches: &[Batch]) -> Result<Rows> {
        let encoder = Encoder::whole(self.config, self.weights)?;
        let mut found = Vec::new();
        // Each by itself, so that it has the same bits whatever else its rank has.
        for sentence in self.mine(embeddings, batches)? {
            found.extend(encoder.embed(&[sentence])?.flatten_all()?.to_vec1::<f32>()?);
        }
        self.gather(&found, batches.len())
    }

    /// What the experts make of them, `choices` for each token, and what that moved.
    pub fn routed(
        &self,
        embeddings: &Embeddings,
        batches: &[Batch],
        choices: usize,
    ) -> Result<(Rows, Loads)> {
        let tokens = |rank| -> usize {
            let batches = &batches[share(batches.len(), rank, self.group.size())];
            batches.iter().map(|batch| batch.ids.elem_count()).sum()
        };
        let mine = tokens(self.group.rank().index());
        let most = (0..self.group.size()).map(tokens).max().unwrap_or(0);
        let (experts, hidden) = (self.experts, self.config.hidden_size);
        let exchange = Exchange::new(self.group, (experts, choices), (mine, most), hidden)?;

        let loads = RefCell::new(Vec::new());
        let encoder = Encoder::load(self.config, self.weights, |i, weights| {
            let (block, exchange, loads) = (&self.blocks[i], &exchange, &loads);
            let attention = Attention::whole(self.config, weights)?;
            Ok((attention, Box::new(Routed { block, exchange, loads })))
        })?;
        let found = encoder.embed(&self.mine(embeddings, batches)?)?.flatten_all()?.to_vec1()?;
        drop(encoder);
        let found = self.gather(&found, batches.len())?;
        let loads = Loads::gather(self.group, experts, &loads.into_inner())?;
        Ok((found, loads))
    }

    /// This rank's sentences: consecutive, so that an expert, whose rows lie by rank, then token, has the
    /// same rows in the same order for any number of ranks.
    fn mine(&self, embeddings: &Embeddings, batches: &[Batch]) -> Result<Vec<Hidden>> {
        let mine = share(batches.len(), self.group.rank().index(), self.group.size());
        Ok(batches[mine].iter().map(|batch| embeddings.forward(batch)).collect::<Result<_, _>>()?)
    }

    /// All ranks' vectors, on every rank.
    fn gather(&self, mine: &[f32], sentences: usize) -> Result<Rows> {
        let first = share(sentences, self.group.rank().index(), self.group.size()).start;
        let hidden = self.config.hidden_size;
        // As integers: nobody else's zeros change a bit.
        let mut all = vec![0_u32; sentences * hidden];
        for (to, x) in all[first * hidden..].iter_mut().zip(mine) {
            *to = x.to_bits();
        }
        self.group.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
        let row = |row: &[u32]| row.iter().copied().map(f32::from_bits).collect();
        Ok(all.chunks(hidden).map(row).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use candle_core::{Device, Tensor};
    use minilm::Difference;
    use minilm::tiny::{self, CONFIG};
    use symmem::launch::threads;

    use super::*;

    const SENTENCES: [&[u32]; 4] = [&[7, 49, 0, 3], &[1, 30], &[12, 7, 7, 7, 41], &[5]];

    /// The dense model's, and those of `choices` of `experts`.
    fn embed(group: &Group, experts: usize, choices: usize) -> Result<(Rows, Rows)> {
        let weights = tiny::weights();
        let embeddings = Embeddings::load(&CONFIG, weights.pp("embeddings"))?;
        let batch = |ids: &[u32]| -> candle_core::Result<Batch> {
            let ids = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
            Ok(Batch { mask: Tensor::ones_like(&ids)?.to_dtype(candle_core::DType::F32)?, ids })
        };
        let batches: Vec<_> = SENTENCES.into_iter().map(batch).collect::<Result<_, _>>()?;
        let weights = weights.pp("encoder");
        let model = Model::load(group, &CONFIG, &weights, experts)?;
        let dense = model.dense(&embeddings, &batches)?;
        Ok((dense, model.routed(&embeddings, &batches, choices)?.0))
    }

    #[test]
    fn all_experts_are_the_dense_model() {
        for experts in [1, 2, 7, 33] {
            for ranks in [1, 2, 3] {
                for (dense, found) in
                    threads(ranks, |group| embed(&group, experts, experts).unwrap()).unwrap()
                {
                    Difference::largest(&dense, &found).unwrap().check().unwrap();
                }
            }
        }
    }

    /// More ranks than sentences, and than experts, among them.
    #[test]
    fn any_number_of_ranks_gives_the_same_bits() {
        for (experts, choices) in [(7, 1), (7, 2), (7, 7), (3, 2)] {
            let alone = threads(1, |group| embed(&group, experts, choices).unwrap()).unwrap();
            for ranks in [2, 3, 4, 6] {
                for found in
                    threads(ranks, |group| embed(&group, experts, choices).unwrap()).unwrap()
                {
                    assert_eq!(found, alone[0], "{choices} of {experts} experts, {ranks} ranks");
                }
            }
        }
    }

    #[test]
    fn fewer_experts_are_another_model() {
        let (dense, found) =
            threads(2, |group| embed(&group, 7, 1).unwrap()).unwrap().swap_remove(0);
        Difference::largest(&dense, &found).unwrap().check().unwrap_err();
    }

    #[test]
    fn more_experts_than_neurons_is_an_error_on_every_rank() {
        for ended in threads(2, |group| embed(&group, 34, 1)).unwrap() {
            let error = ended.unwrap_err().to_string();
            assert_eq!(error, "33 neurons are not enough for 34 experts");
        }
    }
}
