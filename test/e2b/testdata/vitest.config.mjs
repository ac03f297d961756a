// The tests of E2B's JavaScript SDK that need no browser and build no template.
export default {
  test: {
    include: ['tests/**/*.test.ts'],
    exclude: ['tests/runtimes/**', 'tests/template/**', 'tests/bundle/**', 'tests/**/*.browser.test.ts'],
    setupFiles: ['tests/globalFetchFallback.setup.ts'],
    testTimeout: 30_000,
    environment: 'node',
    env: { ...process.env },
  },
}
