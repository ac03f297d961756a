package containerd

// Unexported names for tests.
var (
	WithAppArmor = withAppArmor
	AppArmorText = appArmorText
)

const AppArmorProfile = appArmorProfile
