// Compiled as cargo's release profile does.
use std::hint::black_box;

struct Cart {
    items: Vec<u64>,
}

impl Cart {
    #[inline(never)]
    fn total(&mut self) -> u64 {
        let mut x = 1u64;
        for i in self.items.iter_mut() {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            *i = x;
        }
        self.items.sort();
        self.items[0] + 1
    }

    #[inline(never)]
    fn checkout(&mut self) -> u64 {
        black_box(self.total()) / 2
    }
}

fn main() {
    let mut cart = Cart { items: vec![0; 1 << 14] };
    loop {
        black_box(cart.checkout());
    }
}
