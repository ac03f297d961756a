package containerd

// What tests look at by itself.
var WithAppArmor = withAppArmor

const AppArmorProfile = appArmorProfile
