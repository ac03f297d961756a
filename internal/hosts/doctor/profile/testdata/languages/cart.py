def cart_total(n):
    s = 0
    for i in range(n):
        s += i * i
    return s


def cart_checkout():
    return cart_total(100000) * 2


while True:
    cart_checkout()
