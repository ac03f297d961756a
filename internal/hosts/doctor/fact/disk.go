package fact

// BusyDisk is the share of the time for which a disk is busy from which it is searched what uses it.
const BusyDisk = 0.9

// DeepQueue is the mean of requests outstanding on a disk from which a further request waits, though
// the disk is not busy all the time. With two programs that write and flush files of 64 MiB it
// was 12, and a flush of 4 KiB took 9 ms instead of 0.3.
const DeepQueue = 8
