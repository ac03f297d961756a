package containerd

// Unexported names for tests.
var WithAppArmor = withAppArmor

const AppArmorProfile = appArmorProfile
