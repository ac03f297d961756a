public class Cart {
    static int total(int n) {
        int s = 0;
        for (int i = 0; i < n; i++) s = (s * 31 + i) % 1000003;
        return s;
    }

    static int checkout() {
        return total(1000) * 2;
    }

    public static void main(String[] args) {
        for (int sum = 0; ; ) sum += checkout();
    }
}
